// Makes token text safe to show: invisible characters become visible, direction marks are escaped, long text is truncated.
//
// In: any string, also with lone surrogates. Out: one short line.

/** Characters that show nothing, or change how their neighbours are shown: controls, formats, separators, fillers, lone surrogates. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\u{e0100}-\u{e01ef}]/u;
/** Spaces that are not the ordinary one look like it, and are not. */
const ODD_SPACE = /(?! )\p{Zs}/u;
const MARK = /^\p{M}/u;
/** Letters, digits, signs and spaces, with a few accents each, that show as they are; those that show nothing are not among them. */
const PLAIN =
  /^(?:(?![\u115f\u1160\u2800\u3164\uffa0])[\p{L}\p{N}\p{P}\p{S} \t](?:(?![\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\u{e0100}-\u{e01ef}])\p{M}){0,7})+$/u;
/** Most names and tokens: each character is a grapheme that shows as it is. */
const ASCII = /^[ -~]+$/;
const MAX_PER_GRAPHEME = 8;
const MAX_LENGTH = 32;

const segmenter = typeof Intl.Segmenter === "function" ? new Intl.Segmenter(undefined, { granularity: "grapheme" }) : null;

export function splitGraphemes(text: string): string[] {
  return segmenter ? Array.from(segmenter.segment(text), (part) => part.segment) : Array.from(text);
}

function showCharacter(character: string, space: string): string {
  if (character === " ") return space;
  if (character === "\n") return "⏎";
  if (character === "\t") return "⇥";
  if (HIDDEN.test(character) || ODD_SPACE.test(character)) return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
  return character;
}

/** One grapheme: joiners and variation selectors inside an emoji are wanted there, and nowhere else. */
function showGrapheme(grapheme: string, space: string): string {
  const characters = Array.from(grapheme);
  if (characters.length > 1 && /^\p{Extended_Pictographic}/u.test(grapheme) && characters.length <= 2 * MAX_PER_GRAPHEME) return grapheme;
  // A tower of accents would cover the labels around it.
  const kept = characters.slice(0, MAX_PER_GRAPHEME).map((character) => showCharacter(character, space)).join("");
  return (MARK.test(kept) ? "◌" : "") + kept;
}

const MAX_CACHED = 8192;
const cache = new Map<string, string>();

/** The text to show for a token. */
export function formatToken(text: string, maxLength: number = MAX_LENGTH): string {
  // Every frame of a map formats the same few hundred texts.
  const known = maxLength === MAX_LENGTH ? cache.get(text) : undefined;
  if (known !== undefined) return known;
  const made = makeVisible(text, maxLength);
  if (maxLength === MAX_LENGTH) {
    if (cache.size >= MAX_CACHED) cache.clear();
    cache.set(text, made);
  }
  return made;
}

function makeVisible(text: string, longest: number, space = "·"): string {
  if (text === "") return "(empty)";
  if (text.length <= longest && ASCII.test(text)) return text.replaceAll(" ", space);
  const all = splitGraphemes(text);
  const cut = all.length > longest;
  const kept = cut ? all.slice(0, Math.max(1, longest - 1)) : all;
  return kept.map((grapheme) => showGrapheme(grapheme, space)).join("") + (cut ? "…" : "");
}

/** The text to show for a name or a title: the same, but spaces stay spaces. */
export function formatTitle(text: string, longest = 60): string {
  return makeVisible(text.trim().replace(/\s+/gu, " "), longest, " ");
}

/** The text as it stands among others in a paragraph: nothing is cut, and white space stays. */
export function formatRunningText(text: string): string {
  return PLAIN.test(text) ? text : makeVisible(text, Infinity, " ");
}

/** For canvas: keeps a right-to-left token from turning the text beside it. In a page, `<bdi>` does it. */
export function isolateDirection(text: string): string {
  return `\u2068${text}\u2069`;
}
