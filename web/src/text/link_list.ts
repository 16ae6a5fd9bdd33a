/** The links of a token or word as a list with numbers; the text view paints the same links. */

import { button, element, replaceChildren, token } from "../panels/dom";
import { createLinkRow } from "../panels/pin_panel";
import { formatCount, formatMeasure, formatPercent, pluralize } from "../format_numbers";
import type { Links, Side, Unit } from "../server/protocol";

export interface LinkListActions {
  /** The text of tokens [start, stop); undefined while it is not known. */
  text(side: Side, start: number, stop: number): string | undefined;
  /** Go on to a token of a side. */
  goTo(side: Side, start: number): void;
}

export interface LinkList {
  readonly element: HTMLElement;
  /** Links, or a message why there are none; null hides the list. */
  show(links: Links | string | null, unit: Unit): void;
}

const VISIBLE_ROWS = 10;
const MORE_ROWS = 40;

export function createLinkList(side: Side, { text, goTo }: LinkListActions): LinkList {
  const isQuery = side === "query";
  const other = isQuery ? "key" : "query";
  const description = isQuery ? "attends to" : "is attended by";
  const heading = element("h3");
  const about = element("p", { class: "soft" });
  const list = element("ol", { class: "strongest" });
  const more = button("", () => show(last, lastUnit, list.children.length + MORE_ROWS), { class: "more" });
  const root = element("section", { class: `side side-${side}`, "aria-label": description }, heading, about, list, more);
  let last: Links | string | null = null;
  let lastUnit: Unit = "token";

  const createName = (of: Side, [start, stop]: readonly number[]): HTMLElement =>
    token(text(of, start ?? 0, stop ?? 0), start ?? 0);
  const show = (found: Links | string | null, unit: Unit, length = VISIBLE_ROWS): void => {
    [last, lastUnit] = [found, unit];
    const links = found && typeof found === "object" ? found : null;
    const shown = links?.links.slice(0, length) ?? [];
    const rest = (links?.links.length ?? 0) - shown.length;
    root.hidden = found === null;
    more.hidden = rest === 0;
    more.textContent = `${formatCount(Math.min(rest, MORE_ROWS))} more`;
    replaceChildren(heading, links && createName(side, links.span), ` ${description}`);
    const share = shown.reduce((sum, [, , weight]) => sum + weight, 0) / (links?.total || 1);
    about.textContent = !links
      ? String(found)
      : isQuery
        ? `${formatPercent(share)} of its attention is on these; the mask allows ${pluralize(links.count, unit)}`
        : `${formatMeasure(links.total)} in all; ${pluralize(links.count, unit)} may attend to it`;
    replaceChildren(
      list,
      ...shown.map(([start, stop, weight]) =>
        createLinkRow({
          name: createName(other, [start, stop]),
          place: formatCount(start),
          weight,
          most: shown[0]?.[2] ?? 1,
          marked: false,
          onClick: () => goTo(other, start),
        }),
      ),
    );
  };
  show(null, "token");
  return { element: root, show };
}
