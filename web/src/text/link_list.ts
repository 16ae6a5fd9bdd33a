/** What a token or a word looks at, or who looks at it, as a list: the same that is painted in the text, with numbers. */

import { button, element, replaceChildren, token } from "../panels/dom";
import { linkRow } from "../panels/pin_panel";
import { counted, measured, percent, plural } from "../format_numbers";
import type { Links, Side, Unit } from "../server/protocol";

export interface LinkListActions {
  /** The text of tokens [start, stop); undefined while it is not known. */
  text(side: Side, start: number, stop: number): string | undefined;
  /** Go on to a token of a side. */
  go(side: Side, start: number): void;
}

export interface LinkList {
  readonly element: HTMLElement;
  /** Links, or why there are none; null is nothing to tell. */
  show(links: Links | string | null, unit: Unit): void;
}

const FIRST = 10;
const MORE = 40;

export function createLinkList(side: Side, { text, go }: LinkListActions): LinkList {
  const looks = side === "query";
  const other = looks ? "key" : "query";
  const says = looks ? "looks at" : "is looked at by";
  const heading = element("h3");
  const about = element("p", { class: "soft" });
  const list = element("ol", { class: "strongest" });
  const more = button("", () => show(last, lastUnit, list.children.length + MORE), { class: "more" });
  const root = element("section", { class: `side side-${side}`, "aria-label": says }, heading, about, list, more);
  let last: Links | string | null = null;
  let lastUnit: Unit = "token";

  const name = (of: Side, [start, stop]: readonly number[]): HTMLElement =>
    token(text(of, start ?? 0, stop ?? 0), start ?? 0);
  const show = (told: Links | string | null, unit: Unit, length = FIRST): void => {
    [last, lastUnit] = [told, unit];
    const links = told && typeof told === "object" ? told : null;
    const shown = links?.links.slice(0, length) ?? [];
    const rest = (links?.links.length ?? 0) - shown.length;
    root.hidden = told === null;
    more.hidden = rest === 0;
    more.textContent = `${counted(Math.min(rest, MORE))} more`;
    replaceChildren(heading, links && name(side, links.own), ` ${says}`);
    const share = shown.reduce((sum, [, , weight]) => sum + weight, 0) / (links?.total || 1);
    about.textContent = !links
      ? String(told)
      : looks
        ? `${percent(share)} of its attention is on these; it may look at ${plural(links.count, unit)}`
        : `${measured(links.total)} in all; ${plural(links.count, unit)} may look here`;
    replaceChildren(
      list,
      ...shown.map(([start, stop, weight]) =>
        linkRow({
          name: name(other, [start, stop]),
          place: counted(start),
          weight,
          most: shown[0]?.[2] ?? 1,
          marked: false,
          act: () => go(other, start),
        }),
      ),
    );
  };
  show(null, "token");
  return { element: root, show };
}
