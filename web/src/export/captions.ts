// The name and the caption of a file: model, text, head, meaning of colours, range.
import type { TokenRanges } from "../geometry/zoom_plan";
import type { ColourMeaning } from "../map/map_view";
import { formatCount } from "../format_numbers";
import { formatTitle, isolateDirection } from "../paint/token_text";
import type { Meta } from "../server/protocol";

const MAX_NAME_LENGTH = 60;

/** The name of the model in letters, digits, dots and dashes, which every disk takes, and which hides nothing. */
export function formatModelName(meta: Meta): string {
  const plain = (meta.model || meta.name).normalize("NFKC").replace(/[^\p{L}\p{N}._-]+/gu, "-");
  const model = [...plain.replace(/^[-._]+/, "")].slice(0, MAX_NAME_LENGTH).join("").replace(/[-._]+$/, "");
  return model || "attention";
}

export function createFileName(meta: Meta, head: string, { query, key }: TokenRanges, ending: string): string {
  return `${formatModelName(meta)}_${head}_q${query[0]}-${query[1] - 1}_k${key[0]}-${key[1] - 1}.${ending}`;
}

/** What a colour stands for, and between which ends. */
function describeColours({ stride, channel, scale }: ColourMeaning, heads: readonly string[]): string {
  const [low, high] = scale.range;
  const bins = stride === 1 ? "each pair" : `${channel} of ${stride}\u00d7${stride} pairs`;
  if (scale.colours === "ratio") return `log2 of ${heads.join(" / ")}, ${bins}, ${low} to ${high} bits`;
  if (scale.kind === "uniform") return `weight relative to uniform attention, ${bins}, ${2 ** low} to ${2 ** high} times`;
  return `weight, ${bins}, ${scale.kind === "linear" ? `linear, 0 to ${2 ** high}` : `log2, ${low} to ${high} bits`}`;
}

export interface Caption {
  meta: Meta;
  /** The beginning of the text; "" where it is not known. */
  text: string;
  /** One head, or two that are compared. */
  heads: readonly string[];
  part: TokenRanges;
  painted: ColourMeaning | null;
  version: string;
}

const MAX_TEXT_LENGTH = 60;

export function createCaption({ meta, text, heads, part, painted, version }: Caption): string {
  const formatRange = (name: string, [from, to]: readonly [number, number]): string => `${name} ${formatCount(from)} to ${formatCount(to - 1)}`;
  // The model of a trace is the name of a class, which says less than the text.
  const names = text === "" ? [meta.model, meta.name] : [meta.name, `\u201c${formatTitle(text.trim(), MAX_TEXT_LENGTH)}\u201d`];
  return [
    ...names.filter((name, index) => name !== "" && names.indexOf(name) === index).map((name) => isolateDirection(formatTitle(name, MAX_TEXT_LENGTH + 40))),
    heads.length > 2 ? heads.join(", ") : heads.join(" and "),
    ...(painted ? [describeColours(painted, heads)] : []),
    `${formatRange("queries", part.query)}, ${formatRange("keys", part.key)}`,
    ...(meta.note === null ? [] : [formatTitle(meta.note, 100)]),
    `AttnScope ${version}`,
  ].join(" \u00b7 ");
}
