/**
 * One text as paragraphs of one text node each; converts between tokens, ranges and pixels.
 *
 * In: texts of tokens, from a position on. Out: ranges to highlight; the token under a point; scrolling.
 * Memory: the text twice, and one element per paragraph.
 */

import { element, replaceChildren, setAttributes } from "../panels/dom";
import { formatCount } from "../format_numbers";
import { findTurns } from "./text_kind";
import { findFirstBelow, findLastAtMost, findTokenAt, getCharacterTokens, layOutText, type TextLayout } from "./paragraphs";

/** Estimates, in pixels, for paragraphs that are not in view yet. */
const LINE_HEIGHT = 30;
const CHARACTERS_PER_LINE = 75;
const SLACK = 5;
const MARGIN = 24;
/** Paragraphs get their true height as they come near, and what is below moves. */
const FRAMES = 4;

export class TextPage {
  readonly element: HTMLElement;
  texts: readonly string[] = [];
  from = 0;
  /** Control tokens of a chat, as [start, stop). */
  control: readonly (readonly [start: number, stop: number])[] = [];
  #nodes: readonly Text[] = [];
  #layout: TextLayout = layOutText([]);
  #frame = 0;
  readonly #ruler = document.createRange();

  constructor(label: string) {
    this.element = element("div", { class: "text-page", tabindex: 0, role: "region", "aria-label": label });
  }

  /** True when this is another text than before. */
  show(texts: readonly string[], from: number): boolean {
    const { texts: before } = this;
    if (from === this.from && texts.length === before.length && texts.every((text, at) => text === before[at])) return false;
    const { turns, control } = findTurns(texts);
    const passage = layOutText(texts, new Set(turns.map(({ start }) => start)));
    const { paragraphs, begins, continued } = passage;
    [this.texts, this.from, this.#layout] = [texts, from, passage];
    this.control = control.map(([start, stop]) => [start + from, stop + from]);
    this.#nodes = paragraphs.map((text) => document.createTextNode(text));
    const made = this.#nodes.map((node, index) => {
      const begin = begins[index] ?? 0;
      const turn = turns.findLast(({ start }) => start <= begin);
      const paragraph = element(
        "p",
        {
          "data-from": formatCount(from + begin),
          "data-turn": turn?.role,
          "data-role": turn?.start === begin ? turn.role : null,
          class: continued.has(index) ? "continued" : null,
        },
        node,
      );
      paragraph.style.containIntrinsicBlockSize = `auto ${LINE_HEIGHT * Math.ceil(node.length / CHARACTERS_PER_LINE)}px`;
      return paragraph;
    });
    replaceChildren(this.element, element("div", { class: "column" }, ...made));
    return true;
  }

  /** A line that stands alone and is a heading reads as one. */
  markHeading(position: number): void {
    const token = position - this.from;
    const index = findLastAtMost(this.#layout.begins, token);
    const node = this.#nodes[index];
    if (this.#layout.begins[index] === token && node?.parentElement && !node.data.includes("\n"))
      setAttributes(node.parentElement, { role: "heading", "aria-level": 3 });
  }

  /** Tokens [start, stop), as far as they are here; with the other fragments of their characters. */
  createRange(start: number, stop: number): StaticRange | null {
    const first = Math.max(0, start - this.from);
    const last = Math.min(this.texts.length, stop - this.from) - 1;
    if (last < first) return null;
    const [startContainer, startOffset] = this.#locate(first, first);
    const [endContainer, endOffset] = this.#locate(last, getCharacterTokens(this.#layout, last)[1]);
    if (!startContainer || !endContainer) return null;
    return new StaticRange({ startContainer, startOffset, endContainer, endOffset });
  }

  /** The place where a token begins, in the paragraph of this one. */
  #locate(own: number, token: number): [Text | undefined, number] {
    const { begins, starts } = this.#layout;
    const index = findLastAtMost(begins, own);
    return [this.#nodes[index], (starts[token] ?? 0) - (starts[begins[index] ?? 0] ?? 0)];
  }

  /** Ranges of links, strongest first; of fragments of one character, the strongest. */
  createRanges(links: readonly (readonly [number, number, number])[]): [StaticRange, number][] {
    const seen = new Set<number | undefined>();
    return links.flatMap(([start, stop, weight]): [StaticRange, number][] => {
      const range = this.createRange(start, stop);
      const place = this.#layout.starts[start - this.from];
      if (!range || seen.has(place)) return [];
      seen.add(place);
      return [[range, weight]];
    });
  }

  /** All tokens of the character in which a token lies. */
  getCharacterTokens(position: number): [number, number] {
    const [first, end] = getCharacterTokens(this.#layout, position - this.from);
    return [first + this.from, end + this.from];
  }

  getBoxes(start: number, stop: number): DOMRectList | readonly DOMRect[] {
    const range = this.createRange(start, stop);
    if (!range) return [];
    this.#ruler.setStart(range.startContainer, range.startOffset);
    this.#ruler.setEnd(range.endContainer, range.endOffset);
    return this.#ruler.getClientRects();
  }

  readonly #boxes = (token: number): DOMRectList | readonly DOMRect[] => this.getBoxes(token + this.from, token + this.from + 1);

  #getTokens(index: number): [number, number] {
    const { begins } = this.#layout;
    return [begins[index] ?? 0, begins[index + 1] ?? 0];
  }

  /** The token under the pointer. */
  findTokenAt({ target, clientX, clientY }: MouseEvent): number | null {
    const paragraph = target instanceof Element ? target.closest("p") : null;
    const index = this.#nodes.findIndex((node) => node.parentNode === paragraph);
    const found = index < 0 ? null : findTokenAt(this.#getTokens(index), [clientX, clientY], this.#boxes, SLACK);
    return found === null ? null : found + this.from;
  }

  /** The first token in view. */
  findFirstVisible(): number {
    return this.#findFirstBelow(this.element.getBoundingClientRect().top + MARGIN);
  }

  /** The tokens in view, as [first, end). */
  findVisible(): [number, number] {
    const { top, bottom } = this.element.getBoundingClientRect();
    return [this.#findFirstBelow(top), this.#findFirstBelow(bottom)];
  }

  #findFirstBelow(top: number): number {
    const index = findFirstBelow([0, this.#nodes.length], top, (at) => this.#nodes[at]?.parentElement?.getClientRects() ?? []);
    return findFirstBelow(this.#getTokens(index), top, this.#boxes) + this.from;
  }

  /** Scroll until a token is in view: a third down, or with `top` as the first one. */
  reveal(position: number, top = false, frames = FRAMES): void {
    cancelAnimationFrame(this.#frame);
    const [box] = this.getBoxes(position, position + 1);
    const { element } = this;
    const frame = element.getBoundingClientRect();
    if (!box || frame.height === 0) return;
    const inside = box.top >= frame.top + MARGIN && box.bottom <= frame.bottom - MARGIN;
    if (top || !inside) element.scrollTop += box.top - frame.top - (top ? MARGIN : frame.height / 3);
    if (frames > 0) this.#frame = requestAnimationFrame(() => this.reveal(position, top, frames - 1));
  }
}
