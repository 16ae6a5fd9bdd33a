/**
 * Passages for one head and statistic: those with the most, then one of each decile from the tenth down to the first.
 *
 * In: what the server says of them; their texts are hostile. Out: a wish to see the map of one.
 */

import { counted, ordinal } from "../format_numbers";
import { button, element, replaceChildren } from "../panels/dom";
import { running, title, visible } from "../paint/token_text";
import { valued } from "./histogram";
import type { Passage } from "./protocol";

export interface PassageActions {
  /** Let the model read it, and go to its map. Resolves to words where that cannot be. */
  open(passage: Passage): Promise<string | null>;
  /** What the model that reads is called. */
  readonly reader: string;
}

const BEFORE = 140;
const AFTER = 200;

export function passageLists(passages: readonly Passage[], actions: PassageActions): HTMLElement[] {
  const top = passages.filter(({ kind }) => kind === "top");
  const rest = passages.filter(({ kind }) => kind === "decile").sort((one, other) => (other.decile ?? 0) - (one.decile ?? 0));
  const list = (heading: string, says: string, those: readonly Passage[]): HTMLElement[] =>
    those.length === 0
      ? []
      : [
          element("h3", {}, heading),
          element("p", { class: "soft caption" }, says),
          element("ol", { class: "passages" }, ...those.map((one, at) => card(one, nameOf(one, at), actions))),
        ];
  return [
    ...list("Most of it", "The passages of the whole corpus with the largest mean; the strongest query is marked.", top),
    ...list("By decile", "One passage of each tenth of a random sample, from those with the most to those with the least.", rest),
  ];
}

function card(passage: Passage, name: string, { open, reader }: PassageActions): HTMLElement {
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const text = element("p", { class: "passage-text", dir: "auto" });
  const where = placeOf(passage);
  const show = button("Open map", () => {
    problem.hidden = true;
    show.disabled = true;
    show.textContent = "Reading…";
    void open(passage).then((why) => {
      show.disabled = false;
      show.textContent = "Open map";
      problem.textContent = why === null ? "" : title(why, 600);
      problem.hidden = why === null;
      // A button that was disabled has lost the keyboard.
      if (why !== null) show.focus();
    });
  }, {
    "aria-label": `Open map: ${name}, ${where}`,
    title: `Let ${title(reader)} read this passage, and show the weights of this head`,
  });
  const long = passage.before.length > BEFORE || passage.after.length > AFTER;
  let whole = false;
  const unfold = button("Whole text", () => {
    whole = !whole;
    unfold.setAttribute("aria-expanded", String(whole));
    fill(text, passage, whole);
  }, { "aria-expanded": "false", hidden: !long });
  fill(text, passage, false);
  return element(
    "li",
    { class: "passage" },
    element(
      "div",
      { class: "passage-head" },
      element("strong", { class: "passage-rank" }, name),
      element("span", { class: "passage-score" }, valued(passage.score)),
      element("span", { class: "spring" }),
      unfold,
      show,
    ),
    problem,
    text,
    element("p", { class: "passage-place soft", title: title(passage.file, 300) }, element("bdi", {}, where)),
  );
}

function nameOf({ kind, decile }: Passage, at: number): string {
  return kind === "top" ? `top ${at + 1}` : `${ordinal(decile ?? 0)} decile`;
}

function placeOf({ file, start, offset, tokens }: Passage): string {
  const name = file.split(/[\\/]/).at(-1) ?? file;
  const within = offset > 0 ? `, token ${counted(offset)} on` : "";
  return `${title(name, 28)} at ${counted(start)}${within}, ${counted(tokens)} tokens`;
}

/** The text around the mark, or all of it. */
function fill(target: HTMLElement, { before, marked, after, cut, position }: Passage, whole: boolean): void {
  // Not in the middle of a character.
  const first = whole ? before : before.slice(-BEFORE).replace(/^[\udc00-\udfff]/, "");
  const last = whole ? after : after.slice(0, AFTER).replace(/[\ud800-\udbff]$/, "");
  target.classList.toggle("whole", whole);
  // White space at the edge of a token belongs to the text around it.
  const [, lead = "", word = "", trail = ""] = /^([^\S]*)(.*?)([^\S]*)$/su.exec(marked) ?? [];
  const mark = word === "" ? visible(marked) : visible(word);
  replaceChildren(
    target,
    (cut[0] || first.length < before.length) && "… ",
    flowing(first + (word === "" ? "" : lead), whole),
    position !== null && element("mark", { title: `The strongest query, token ${counted(position)}` }, mark),
    flowing((word === "" ? "" : trail) + last, whole),
    (cut[1] || last.length < after.length) && " …",
  );
}

/** Text in which nothing is hidden or turned; its lines stay lines, or become one. */
export function flowing(text: string, lines: boolean): string {
  const parts = text.split(/\r\n|\r|\n/u).map((line) => (line === "" ? "" : running(line)));
  return parts.join(lines ? "\n" : " ⏎ ");
}
