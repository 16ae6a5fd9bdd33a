/**
 * What the Ask box offers for a text, in groups.
 *
 * In: the text and what the page shows. Out: suggestions with counts; each knows what it does.
 */

import { formatCount, pluralize } from "../format_numbers";
import { countLabels, formatScoreName, listScoreNames, passesFilters } from "../heads/scored_heads";
import { formatTitle } from "../paint/token_text";
import type { HeadRanking } from "../questions/head_ranking";
import type { Link } from "../questions/head_question";
import { parseQuestion, resolvePositions, type Positions } from "../questions/parse_question";
import { joinParts, namePositions, type GetText } from "../questions/sentences";
import { canEvict } from "../server/evicted_keys";
import { formatHeadName, getLayerNumber, type Layer, type Side, type TraceHead } from "../server/protocol";
import { formatEviction, parseEvictions, POLICY_NAMES } from "../questions/evictions";
import { isAvailable, type Eviction, type HeadId } from "../state";
import { findLinks, findNextPlaces, type LinkChoice, type Place, type TextSearch } from "./find_words";

export interface Suggestion {
  readonly group: string;
  readonly text: string;
  readonly detail: string;
  /** Text around a place, with the words in the middle. */
  readonly context?: readonly [before: string, words: string, after: string];
  /** Whether Shift+Enter pins it as the key. */
  readonly isToken?: true;
  /** Text to put into the box instead of doing something. */
  readonly fill?: string;
  run(side: Side): void;
}

export interface AskCommand {
  readonly name: string;
  /** Other words for it. */
  readonly words: string;
  /** The key that does the same. */
  readonly key: string;
  run(): void;
}

export interface AskContext extends TextSearch {
  getCommands(): readonly AskCommand[];
  readonly ranking: HeadRanking;
  /** The heads that can be opened; null is all. */
  readonly availableHeads: readonly HeadId[] | null;
  getShown(): TraceHead | null;
  getText: GetText;
  /** Where a search for text begins. */
  getStart(): number;
  openHead(layer: number, head: number): void;
  /** Pins both sides of a link. */
  pinLink(link: Link): void;
  /** Pins one side, and leaves the other as it is. */
  pinSide(side: Side, positions: Positions): void;
  /** Remember a place, so that the next can be found. */
  rememberPlace(text: string, side: Side, place: Place): void;
  setLabel(label: string): void;
  setFilter(filter: string): void;
  setEviction(eviction: Eviction | null): void;
}

const MAX_PLACES = 5;
const MAX_COMMANDS = 6;

export async function suggest(typed: string, context: AskContext, signal: AbortSignal): Promise<readonly Suggestion[]> {
  const question = parseQuestion(typed);
  const shown = context.getShown();
  const layer = shown?.meta.layers[shown.layer];
  if (question.kind === "empty") return [...suggestExamples(shown), ...suggestCommands("", context.getCommands())];
  if (question.kind === "command") return suggestCommands(question.text, context.getCommands(), Infinity);
  if (!shown || !layer) return suggestCommands(typed.trim(), context.getCommands());
  switch (question.kind) {
    case "label":
      return suggestLabels(question.label, context);
    case "score":
      return suggestScore(question.filter, context);
    case "link":
      return (await findLinks(context, question.query, question.key, layer, signal)).map((choice) => toLinkSuggestion(choice, context));
    case "head": {
      const heads = suggestHead(shown, question.layer, question.head, context);
      return heads.length > 0 ? heads : suggestPlaces(typed.trim(), layer, context, signal);
    }
    case "positions": {
      const positions = resolvePositions(question.positions, layer.queries);
      const places = await suggestPlaces(typed.trim(), layer, context, signal);
      if (!positions && places.length === 0) throw new Error(`Positions are 0 to ${formatCount(layer.queries - 1)}.`);
      return [...(positions ? [toPositionSuggestion(positions, context)] : []), ...places];
    }
    case "text":
      return [
        ...suggestEvictions(question.text, layer, context),
        ...(await suggestPlaces(question.text, layer, context, signal)),
        ...suggestLabels(question.text.toLowerCase(), context, true),
        ...suggestCommands(question.text, context.getCommands()),
      ];
  }
}

/** Kinds of questions, to fill in. */
function suggestExamples(shown: TraceHead | null): readonly Suggestion[] {
  if (!shown) return [];
  const head = formatHeadName(shown.meta, shown.layer, shown.head);
  const examples = [head, "is -> the", "-1 -> 0..9", "label:induction", "entropy<1", ...(canEvict(shown.meta.layers[shown.layer]) ? ["keep 25% by received"] : [])];
  return examples.map((text) => ({ group: "Ask for words of the text, or", text, detail: "", fill: text, run: () => undefined }));
}

function suggestCommands(text: string, commands: readonly AskCommand[], limit = MAX_COMMANDS): readonly Suggestion[] {
  const wanted = text.toLowerCase();
  const matches = commands.filter(({ name, words }) => ` ${name} ${words}`.toLowerCase().includes(` ${wanted}`));
  return matches.slice(0, limit).map(({ name, key, run }) => ({ group: "Commands", text: name, detail: key, run }));
}

function suggestHead({ meta }: TraceHead, layerNumber: number, number: number, context: AskContext): readonly Suggestion[] {
  const layer = meta.layers.findIndex((_, index) => getLayerNumber(meta, index) === layerNumber);
  const about = meta.layers[layer];
  const head = about ? (about.numbers.includes(number) ? about.numbers.indexOf(number) : number) : -1;
  if (!about || head < 0 || head >= about.heads || !isAvailable(context.availableHeads, layer, head)) return [];
  const detail = context.ranking.getLabel(layer, head) ?? formatTitle(about.name);
  return [{ group: "Head", text: formatHeadName(meta, layer, head), detail, run: () => context.openHead(layer, head) }];
}

function suggestLabels(beginning: string, context: AskContext, isText = false): readonly Suggestion[] {
  const counts = countLabels(context.ranking.scored).filter(([label]) => label.startsWith(beginning) && (!isText || beginning.length > 2));
  return counts.map(([label, count]) => ({
    group: "Labels",
    text: `label:${label}`,
    detail: pluralize(count, "head"),
    run: () => context.setLabel(label),
  }));
}

function suggestScore(filter: string, context: AskContext): readonly Suggestion[] {
  const { scored } = context.ranking;
  const names = listScoreNames(scored);
  const [name = "", rest = ""] = /^([a-z_]+)(.*)$/.exec(filter)?.slice(1) ?? [];
  // The beginning of a name is enough.
  const matches = names.includes(name) ? [name] : names.filter((known) => known.startsWith(name));
  return matches.map((known) => {
    const condition = `${known}${rest}`;
    const count = scored.filter((head) => passesFilters(head, "", condition)).length;
    return { group: "Scores", text: `${formatScoreName(known)} ${rest}`, detail: pluralize(count, "head"), run: () => context.setFilter(condition) };
  });
}

function suggestEvictions(text: string, layer: Layer, context: AskContext): readonly Suggestion[] {
  return (canEvict(layer) ? parseEvictions(text) : []).map((eviction) => ({
    group: "KV cache",
    text: eviction ? formatEviction(eviction) : "keep all pairs",
    detail: eviction ? POLICY_NAMES[eviction.by] : "",
    run: () => context.setEviction(eviction),
  }));
}

async function suggestPlaces(text: string, layer: Layer, context: AskContext, signal: AbortSignal): Promise<readonly Suggestion[]> {
  if (!layer.has_texts) return [];
  const places = await findNextPlaces(context, "query", text, layer.queries, context.getStart(), false, MAX_PLACES, signal);
  return places.map((place) => ({
    group: `Text, ${pluralize(place.count, "place")}`,
    text: formatCount(place.first),
    detail: `${formatCount(place.index + 1)} of ${formatCount(place.count)}`,
    context: place.context,
    isToken: true,
    run(side) {
      context.rememberPlace(text, side, place);
      context.pinSide(side, pickTokens(side, place));
    },
  }));
}

/** Of the words of a query the last token counts, of a key all. */
export function pickTokens(side: Side, { first, last }: Positions): Positions {
  return side === "query" ? { first: last, last } : { first, last };
}

function toPositionSuggestion(positions: Positions, context: AskContext): Suggestion {
  const { first, last } = positions;
  const text = first === last ? formatCount(first) : `${formatCount(first)} to ${formatCount(last)}`;
  const detail = joinParts(namePositions("query", positions, context.getText));
  return { group: "Position", text, detail, isToken: true, run: (side) => context.pinSide(side, positions) };
}

function toLinkSuggestion({ link, query, key }: LinkChoice, context: AskContext): Suggestion {
  const name = (side: Side, positions: Positions | null, place: Place | null): string => {
    if (!positions) return "";
    const words = place ? formatTitle(place.context[1], 24) : joinParts(namePositions(side, positions, context.getText));
    const { first, last } = positions;
    return first === last ? `${words} ${formatCount(first)}` : place ? `${words} ${formatCount(first)} to ${formatCount(last)}` : words;
  };
  const place = key ?? query;
  return {
    group: "Link",
    text: `${name("query", link.query, query)} → ${name("key", link.key, key)}`.trim(),
    detail: place ? `${formatCount(place.index + 1)} of ${formatCount(place.count)}` : "",
    ...(place && { context: place.context }),
    run: () => context.pinLink(link),
  };
}
