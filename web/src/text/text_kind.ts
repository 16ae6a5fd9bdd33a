/** What kind of text this is: code, or the turns of a chat. */

export interface Turn {
  /** The first token of the turn. */
  readonly start: number;
  readonly role: string;
}

export interface ChatMarks {
  readonly turns: readonly Turn[];
  /** Tokens [start, stop) of control tokens and of the names of roles. */
  readonly control: readonly (readonly [start: number, stop: number])[];
}

/** The beginning of a turn in the common chat templates, with its role. */
const TURN =
  /<\|im_start\|>(\w{1,20})|<\|start_header_id\|>(\w{1,20})<\|end_header_id\|>|<start_of_turn>(\w{1,20})|<\|(system|user|assistant)\|>/gu;
const CONTROL = /<\|[a-z_]{2,30}\|>|<(?:start|end)_of_turn>/gu;
const MIN_CODE_LINES = 4;
const CODE_SHARE = 0.4;
/** Of a long text the beginning decides. */
const MAX_CODE_LENGTH = 100_000;

export function findTurns(texts: readonly string[]): ChatMarks {
  const whole = texts.join("");
  if (!whole.includes("<|") && !whole.includes("<start_of_turn>")) return { turns: [], control: [] };
  const offsets: number[] = [];
  let length = 0;
  for (const text of texts) {
    offsets.push(length);
    length += text.length;
  }
  /** The token that contains a character; matches are sorted, so the search goes on from the last. */
  const createFinder = (): ((at: number) => number) => {
    let token = 0;
    return (at) => {
      while ((offsets[token + 1] ?? Infinity) <= at) token += 1;
      return token;
    };
  };
  const findTurn = createFinder();
  const turns = [...whole.matchAll(TURN)].map((found) => ({
    start: findTurn(found.index),
    role: found.slice(1).find((role) => role !== undefined) ?? "",
  }));
  const findControl = createFinder();
  const spans = [...whole.matchAll(TURN), ...whole.matchAll(CONTROL)].map((found) => [found.index, found.index + found[0].length] as const);
  const control = spans
    .sort((one, other) => one[0] - other[0] || other[1] - one[1])
    .map(([from, to]): [number, number] => [findControl(from), to])
    .map(([start, to]): [number, number] => {
      let stop = start + 1;
      while ((offsets[stop] ?? Infinity) < to) stop += 1;
      return [start, stop];
    });
  return { turns, control };
}

/** Whether two in five lines are indented, or end as statements do. */
export function isCode(texts: readonly string[]): boolean {
  const lines = texts.join("").slice(0, MAX_CODE_LENGTH).split("\n").filter((line) => line.trim() !== "");
  const count = lines.filter((line) => /^(?: {2,}|\t)\S|[{};]\s*$|\):\s*$/u.test(line)).length;
  return lines.length >= MIN_CODE_LINES && count >= CODE_SHARE * lines.length;
}
