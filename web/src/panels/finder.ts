/** Find a token by its text, and go to a position by its number. */

import { button, element } from "./dom";
import { formatCount } from "../format_numbers";
import { LatestRequest } from "../server/requests";
import type { FindResult } from "../server/protocol";
import type { FindRequest } from "../server/trace_cache";

export interface FinderActions {
  find(query: FindRequest): Promise<FindResult>;
  /** Where a search starts: the pinned query, or the top of the view. */
  getStart(): number;
  goTo(position: number): void;
  getLength(): number;
  /** Give the focus back to the map. */
  returnFocus(): void;
}

export interface Finder {
  readonly element: HTMLElement;
  focusFind(): void;
  focusGoTo(): void;
  step(backward: boolean): void;
  reset(): void;
}

export function createFinder(actions: FinderActions): Finder {
  const text = element("input", {
    type: "search",
    placeholder: "token",
    "aria-label": "Find a token",
    maxlength: 200,
    class: "find-text",
  });
  const result = element("span", { class: "find-answer soft", "aria-live": "polite" });
  const position = element("input", {
    type: "text",
    inputmode: "numeric",
    placeholder: "position",
    "aria-label": "Go to position",
    class: "go-to",
    maxlength: 9,
  });
  const request = new LatestRequest();
  let last: number | null = null;

  const step = (backward: boolean): void => {
    const wanted = text.value;
    if (wanted.trim() === "") return focusFind();
    const after = last === null ? actions.getStart() : backward ? last - 1 : last + 1;
    result.textContent = "…";
    void request.run(
      (signal) => findAround({ text: wanted, after, backward, signal }),
      ({ position: found, index, count }) => {
        last = found;
        result.textContent = found === null ? "not found" : `${formatCount(index + 1)} of ${formatCount(count)}`;
        if (found !== null) actions.goTo(found);
      },
      (message) => {
        result.textContent = message;
      },
    );
  };
  /** Wraps around at the end, and at the start when searching backward. */
  const findAround = async (wanted: FindRequest): Promise<FindResult> => {
    const end = Math.max(0, actions.getLength() - 1);
    const begin = wanted.backward ? end : 0;
    const inside = wanted.after >= 0 && wanted.after <= end;
    const found = await actions.find(inside ? wanted : { ...wanted, after: begin });
    if (!inside || found.position !== null || found.count === 0) return found;
    return actions.find({ ...wanted, after: begin });
  };
  const goToPosition = (): void => {
    const wanted = /^\s*(\d{1,9})\s*$/.exec(position.value.replaceAll(",", ""))?.[1];
    const length = actions.getLength();
    if (wanted === undefined || Number(wanted) >= length) {
      result.textContent = length > 0 ? `0 to ${formatCount(length - 1)}` : "nothing to go to";
      return;
    }
    result.textContent = "";
    actions.goTo(Number(wanted));
    actions.returnFocus();
  };
  const focusFind = (): void => {
    text.focus();
    text.select();
  };

  text.addEventListener("input", () => {
    last = null;
    result.textContent = "";
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) step(event.shiftKey);
    if (event.key !== "Escape") return;
    // By default a search field is cleared on Escape, and "next" would have nothing to find.
    event.preventDefault();
    actions.returnFocus();
  });
  position.addEventListener("keydown", (event) => {
    if (event.key === "Enter") goToPosition();
    else if (event.key === "Escape") actions.returnFocus();
  });

  return {
    element: element(
      "div",
      { class: "finder", role: "search" },
      text,
      button("‹", () => step(true), { "aria-label": "Previous find", title: "Previous find (N)", class: "step" }),
      button("›", () => step(false), { "aria-label": "Next find", title: "Next find (n)", class: "step" }),
      result,
      position,
    ),
    focusFind,
    focusGoTo() {
      position.focus();
      position.select();
    },
    step,
    reset() {
      // A result for another head would lead to a wrong place.
      request.cancel();
      last = null;
      result.textContent = "";
    },
  };
}
