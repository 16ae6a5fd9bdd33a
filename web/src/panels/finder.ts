/** Find a token by its text, and go to a position by its number. */

import { button, element } from "./dom";
import { counted } from "../format_numbers";
import { Latest, told } from "../server/requests";
import type { Found } from "../server/protocol";
import { aborted } from "../server/transport";

/** The next token with this text, from `after` on. */
export interface Wanted {
  readonly text: string;
  readonly after: number;
  readonly backward: boolean;
  readonly signal: AbortSignal;
}

export interface FinderActions {
  find(wanted: Wanted): Promise<Found>;
  /** Where a search starts: the pinned query, or the top of the view. */
  from(): number;
  arrive(position: number): void;
  length(): number;
  /** Give the focus back to the map. */
  leave(): void;
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
  const answer = element("span", { class: "find-answer soft", "aria-live": "polite" });
  const position = element("input", {
    type: "text",
    inputmode: "numeric",
    placeholder: "position",
    "aria-label": "Go to position",
    class: "go-to",
    maxlength: 9,
  });
  const latest = new Latest();
  let last: number | null = null;

  const step = async (backward: boolean): Promise<void> => {
    const wanted = text.value;
    if (wanted.trim() === "") return focusFind();
    const after = last === null ? actions.from() : backward ? last - 1 : last + 1;
    const signal = latest.begin();
    answer.textContent = "…";
    try {
      const found = await around({ text: wanted, after, backward, signal });
      last = found.position;
      if (found.position === null) {
        answer.textContent = "not found";
        return;
      }
      answer.textContent = `${counted(found.index + 1)} of ${counted(found.count)}`;
      actions.arrive(found.position);
    } catch (error) {
      if (!aborted(error)) answer.textContent = told(error);
    }
  };
  /** Past the last one comes the first again, and the other way round. */
  const around = async (wanted: Wanted): Promise<Found> => {
    const end = Math.max(0, actions.length() - 1);
    const begin = wanted.backward ? end : 0;
    const inside = wanted.after >= 0 && wanted.after <= end;
    const found = await actions.find(inside ? wanted : { ...wanted, after: begin });
    if (!inside || found.position !== null || found.count === 0) return found;
    return actions.find({ ...wanted, after: begin });
  };
  const go = (): void => {
    const wanted = /^\s*(\d{1,9})\s*$/.exec(position.value.replaceAll(",", ""))?.[1];
    const length = actions.length();
    if (wanted === undefined || Number(wanted) >= length) {
      answer.textContent = length > 0 ? `0 to ${counted(length - 1)}` : "nothing to go to";
      return;
    }
    answer.textContent = "";
    actions.arrive(Number(wanted));
    actions.leave();
  };
  const focusFind = (): void => {
    text.focus();
    text.select();
  };

  text.addEventListener("input", () => {
    last = null;
    answer.textContent = "";
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) void step(event.shiftKey);
    if (event.key !== "Escape") return;
    // Left to itself a search field empties on Escape, and there would be no next to go to.
    event.preventDefault();
    actions.leave();
  });
  position.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go();
    else if (event.key === "Escape") actions.leave();
  });

  return {
    element: element(
      "div",
      { class: "finder", role: "search" },
      text,
      button("‹", () => void step(true), { "aria-label": "Previous find", title: "Previous find (N)", class: "step" }),
      button("›", () => void step(false), { "aria-label": "Next find", title: "Next find (n)", class: "step" }),
      answer,
      position,
    ),
    focusFind,
    focusGoTo() {
      position.focus();
      position.select();
    },
    step: (backward) => void step(backward),
    reset() {
      // What was asked of another head would lead to a place in this one.
      latest.stop();
      last = null;
      answer.textContent = "";
    },
  };
}
