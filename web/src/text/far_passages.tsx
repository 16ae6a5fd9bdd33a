/** The strongest links that are out of view, with the passage around each. */

import { render } from "preact";
import { Kwic } from "../evidence/link_rows";
import { findPassage } from "../evidence/passage";
import { formatCount, formatPercent } from "../format_numbers";
import { element } from "../panels/dom";
import type { Links } from "../server/protocol";
import type { LinkListActions } from "./link_list";

const MAX_PASSAGES = 3;
/** Weaker links are only listed. */
const LEAST_WEIGHT = 0.05;
/** Characters of context on each side. */
const CONTEXT = 90;
/** Tokens so near to each other are in one passage. */
const NEIGHBOURS = 16;

export class FarPassages {
  readonly element = element("section", { class: "far-passages", "aria-label": "Out of view", hidden: true });

  constructor(private readonly actions: LinkListActions) {}

  /** Links of the query, on the page of the keys; tokens [from, to) are in view. */
  show(links: Links | null, [from, to]: readonly [number, number], isOnePage: boolean): void {
    const far = (isOnePage ? (links?.links ?? []) : [])
      .slice(0, 2 * MAX_PASSAGES)
      // The first token holds attention that a head does not use; it is listed below.
      .filter(([start, , weight]) => weight >= LEAST_WEIGHT && start > 0 && (start < from || start >= to))
      // One passage for neighbours.
      .filter(([start], index, all) => !all.slice(0, index).some(([other]) => Math.abs(start - other) < NEIGHBOURS))
      .slice(0, MAX_PASSAGES);
    this.element.hidden = far.length === 0;
    render(
      <>
        <h3>Out of view</h3>
        {far.map(([start, stop, weight]) => (
          <button key={start} type="button" class="passage" title="Go there" onClick={() => this.actions.goTo("key", start)}>
            <Kwic passage={findPassage((position) => this.actions.getText("key", position), start, stop - 1, CONTEXT)} position={start} />
            <span class="soft">
              {formatPercent(weight)} to {formatCount(start)}
            </span>
          </button>
        ))}
      </>,
      this.element,
    );
  }
}
