/** The links of a token, word or span as a list with numbers; the text view paints the same links. */

import { render } from "preact";
import { LEAST_LISTED, LinkRows } from "../evidence/link_rows";
import { findPassage, type GetText } from "../evidence/passage";
import { Token } from "../evidence/pin_section";
import { formatMeasure, formatPercent, pluralize } from "../format_numbers";
import { element } from "../panels/dom";
import type { Links, Side, Unit } from "../server/protocol";

export interface LinkListActions {
  /** The text of a token of a side; undefined while it is not known. */
  getText(side: Side, position: number): string | undefined;
  /** Go on to a token of a side. */
  goTo(side: Side, start: number): void;
}

export interface LinkList {
  readonly element: HTMLElement;
  /** Links, or a message why there are none; null hides the list. */
  show(links: Links | string | null, unit: Unit): void;
}

const VISIBLE_ROWS = 10;
/** Characters of context on each side. */
const CONTEXT = 9;

export function createLinkList(side: Side, { getText, goTo }: LinkListActions): LinkList {
  const isQuery = side === "query";
  const other = isQuery ? "key" : "query";
  const description = isQuery ? "attends to" : "is attended by";
  const root = element("section", { class: `side side-${side}`, "aria-label": description });
  const own: GetText = (position) => getText(side, position);
  const others: GetText = (position) => getText(other, position);

  const show = (found: Links | string | null, unit: Unit): void => {
    const links = found && typeof found === "object" ? found : null;
    root.hidden = found === null;
    const listed = links?.links.filter(([, , weight]) => weight >= LEAST_LISTED) ?? [];
    const stops = new Map(listed.map(([start, stop]) => [start, stop]));
    const [start = 0, stop = 1] = links?.span ?? [];
    const share = listed.slice(0, VISIBLE_ROWS).reduce((sum, [, , weight]) => sum + weight, 0) / (links?.total || 1);
    render(
      <>
        <h3>
          {links && <Token text={findPassage(own, start, stop - 1, 0)?.marked} position={start} />} {description}
        </h3>
        <p class="soft">
          {!links
            ? found
            : isQuery
              ? `${formatPercent(share)} of its attention is on these; the mask allows ${pluralize(links.count, unit)}`
              : `${formatMeasure(links.total)} in all; ${pluralize(links.count, unit)} may attend to it`}
        </p>
        <LinkRows
          key={start}
          rows={listed.map(([position, , weight]) => ({ position, weight }))}
          visible={VISIBLE_ROWS}
          getPassage={(position) => findPassage(others, position, (stops.get(position) ?? position + 1) - 1, CONTEXT)}
          onChoose={(position) => goTo(other, position)}
        />
      </>,
      root,
    );
  };
  show(null, "token");
  return { element: root, show };
}
