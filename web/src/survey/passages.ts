/**
 * Passages for one head and statistic: those with the most, then one of each decile from the tenth down to the first.
 *
 * In: passages of the server; their texts are untrusted. Out: requests to open the map of one.
 */

import { formatCount, formatOrdinal } from "../format_numbers";
import { button, element, replaceChildren } from "../panels/dom";
import { formatRunningText, formatTitle, formatToken } from "../paint/token_text";
import { formatValue } from "./histogram";
import type { Passage } from "./protocol";

export interface PassageActions {
  /** Run the model on it and open its map. Resolves to a message where that fails. */
  open(passage: Passage): Promise<string | null>;
  /** The name of the model. */
  readonly reader: string;
}

const BEFORE_CHARACTERS = 140;
const AFTER_CHARACTERS = 200;

export function createPassageLists(passages: readonly Passage[], actions: PassageActions): HTMLElement[] {
  const top = passages.filter(({ kind }) => kind === "top");
  const rest = passages.filter(({ kind }) => kind === "decile").sort((one, other) => (other.decile ?? 0) - (one.decile ?? 0));
  const list = (heading: string, description: string, those: readonly Passage[]): HTMLElement[] =>
    those.length === 0
      ? []
      : [
          element("h3", {}, heading),
          element("p", { class: "soft caption" }, description),
          element("ol", { class: "passages" }, ...those.map((one, at) => createPassageCard(one, getPassageName(one, at), actions))),
        ];
  return [
    ...list("Most of it", "The passages of the whole corpus with the largest mean; the strongest query is marked.", top),
    ...list("By decile", "One passage of each tenth of a random sample, from those with the most to those with the least.", rest),
  ];
}

function createPassageCard(passage: Passage, name: string, { open, reader }: PassageActions): HTMLElement {
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const text = element("p", { class: "passage-text", dir: "auto" });
  const where = formatSource(passage);
  const show = button("Open map", () => {
    problem.hidden = true;
    show.disabled = true;
    show.textContent = "Reading…";
    void open(passage).then((why) => {
      show.disabled = false;
      show.textContent = "Open map";
      problem.textContent = why === null ? "" : formatTitle(why, 600);
      problem.hidden = why === null;
      // A button that was disabled has lost the keyboard.
      if (why !== null) show.focus();
    });
  }, {
    "aria-label": `Open map: ${name}, ${where}`,
    title: `Let ${formatTitle(reader)} read this passage, and show the weights of this head`,
  });
  const long = passage.before.length > BEFORE_CHARACTERS || passage.after.length > AFTER_CHARACTERS;
  let whole = false;
  const unfold = button("Whole text", () => {
    whole = !whole;
    unfold.setAttribute("aria-expanded", String(whole));
    fillText(text, passage, whole);
  }, { "aria-expanded": "false", hidden: !long });
  fillText(text, passage, false);
  return element(
    "li",
    { class: "passage" },
    element(
      "div",
      { class: "passage-head" },
      element("strong", { class: "passage-rank" }, name),
      element("span", { class: "passage-score" }, formatValue(passage.score)),
      element("span", { class: "spring" }),
      unfold,
      show,
    ),
    problem,
    text,
    element("p", { class: "passage-place soft", title: formatTitle(passage.file, 300) }, element("bdi", {}, where)),
  );
}

function getPassageName({ kind, decile }: Passage, at: number): string {
  return kind === "top" ? `top ${at + 1}` : `${formatOrdinal(decile ?? 0)} decile`;
}

function formatSource({ file, start, offset, tokens }: Passage): string {
  const name = file.split(/[\\/]/).at(-1) ?? file;
  const within = offset > 0 ? `, token ${formatCount(offset)} on` : "";
  return `${formatTitle(name, 28)} at ${formatCount(start)}${within}, ${formatCount(tokens)} tokens`;
}

/** The text around the mark, or all of it. */
function fillText(target: HTMLElement, { before, marked, after, cut, position }: Passage, whole: boolean): void {
  // Not in the middle of a character.
  const first = whole ? before : before.slice(-BEFORE_CHARACTERS).replace(/^[\udc00-\udfff]/, "");
  const last = whole ? after : after.slice(0, AFTER_CHARACTERS).replace(/[\ud800-\udbff]$/, "");
  target.classList.toggle("whole", whole);
  // White space at the edge of a token belongs to the text around it.
  const [, lead = "", word = "", trail = ""] = /^([^\S]*)(.*?)([^\S]*)$/su.exec(marked) ?? [];
  const mark = word === "" ? formatToken(marked) : formatToken(word);
  replaceChildren(
    target,
    (cut[0] || first.length < before.length) && "… ",
    formatFlowingText(first + (word === "" ? "" : lead), whole),
    position !== null && element("mark", { title: `The strongest query, token ${formatCount(position)}` }, mark),
    formatFlowingText((word === "" ? "" : trail) + last, whole),
    (cut[1] || last.length < after.length) && " …",
  );
}

/** Text in which nothing is hidden or turned; its lines stay lines, or become one. */
export function formatFlowingText(text: string, lines: boolean): string {
  const parts = text.split(/\r\n|\r|\n/u).map((line) => (line === "" ? "" : formatRunningText(line)));
  return parts.join(lines ? "\n" : " ⏎ ");
}
