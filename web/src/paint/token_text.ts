// Token text made safe to look at: what is invisible becomes visible, what turns text around is written out, what is long is cut.
//
// In: any string at all, also halves of characters. Out: one short line. Does not know where it is drawn.

/** Characters that show nothing, or change how their neighbours are shown: controls, formats, separators, fillers, lone surrogates. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/u;
/** Spaces that are not the ordinary one look like it, and are not. */
const ODD_SPACE = /(?! )\p{Zs}/u;
const MARK = /^\p{M}/u;
/** Letters, digits, signs and spaces, with a few accents each, that show as they are; those that show nothing are not among them. */
const PLAIN =
  /^(?:(?![\u115f\u1160\u2800\u3164\uffa0])[\p{L}\p{N}\p{P}\p{S} \t](?:(?![\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\u{e0100}-\u{e01ef}])\p{M}){0,7})+$/u;
const MOST_IN_ONE = 8;
export const LONGEST = 32;

const segmenter = typeof Intl.Segmenter === "function" ? new Intl.Segmenter(undefined, { granularity: "grapheme" }) : null;

export function graphemes(text: string): string[] {
  return segmenter ? Array.from(segmenter.segment(text), (part) => part.segment) : Array.from(text);
}

function shown(character: string, space: string): string {
  if (character === " ") return space;
  if (character === "\n") return "⏎";
  if (character === "\t") return "⇥";
  if (HIDDEN.test(character) || ODD_SPACE.test(character)) return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
  return character;
}

/** One grapheme: joiners and variation selectors inside an emoji are wanted there, and nowhere else. */
function shownGrapheme(grapheme: string, space: string): string {
  const characters = Array.from(grapheme);
  if (characters.length > 1 && /^\p{Extended_Pictographic}/u.test(grapheme) && characters.length <= 2 * MOST_IN_ONE) return grapheme;
  // A tower of accents would cover the labels around it.
  const kept = characters.slice(0, MOST_IN_ONE).map((character) => shown(character, space)).join("");
  return (MARK.test(kept) ? "◌" : "") + kept;
}

const REMEMBERED = 8192;
const remembered = new Map<string, string>();

/** The text to show for a token. */
export function visible(text: string, longest: number = LONGEST): string {
  // Every frame of a map asks for the same few hundred texts again.
  const known = longest === LONGEST ? remembered.get(text) : undefined;
  if (known !== undefined) return known;
  const made = madeVisible(text, longest);
  if (longest === LONGEST) {
    if (remembered.size >= REMEMBERED) remembered.clear();
    remembered.set(text, made);
  }
  return made;
}

function madeVisible(text: string, longest: number, space = "·"): string {
  if (text === "") return "(empty)";
  const all = graphemes(text);
  const cut = all.length > longest;
  const kept = cut ? all.slice(0, Math.max(1, longest - 1)) : all;
  return kept.map((grapheme) => shownGrapheme(grapheme, space)).join("") + (cut ? "…" : "");
}

/** The text to show for a name or a title: the same, but spaces stay spaces. */
export function title(text: string, longest = 60): string {
  return madeVisible(text.trim().replace(/\s+/gu, " "), longest, " ");
}

/** The text as it stands among others in a paragraph: nothing is cut, and white space stays. */
export function running(text: string): string {
  return PLAIN.test(text) ? text : madeVisible(text, Infinity, " ");
}

/** For canvas: keeps a right-to-left token from turning the text beside it. In a page, `<bdi>` does it. */
export function isolated(text: string): string {
  return `\u2068${text}\u2069`;
}
