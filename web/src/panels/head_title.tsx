/** Above the map: the name of the head, its label, and what is pinned as a sentence. */

import { render, type JSX } from "preact";
import { formatCount } from "../format_numbers";
import { formatTitle } from "../paint/token_text";
import { getPinnedLink } from "../questions/head_question";
import type { HeadRanking } from "../questions/head_ranking";
import { isShown } from "../questions/opening";
import { describeLink, type GetText } from "../questions/sentences";
import { formatHeadName, type Opening, type TraceHead } from "../server/protocol";
import type { State } from "../state";
import { Sentence } from "./ranking_panel";

export interface HeadTitleOptions {
  readonly state: State;
  readonly shown: TraceHead;
  readonly ranking: HeadRanking;
  readonly opening: Opening | null;
  /** Whether the head to begin with is not known yet. */
  readonly isSearching: boolean;
  getText: GetText;
}

export function renderHeadTitle(slot: HTMLElement, options: HeadTitleOptions): void {
  render(<HeadTitle {...options} />, slot);
}

function HeadTitle({ state, shown, ranking, opening, isSearching, getText }: HeadTitleOptions): JSX.Element {
  const { meta, layer, head } = shown;
  const link = getPinnedLink(state);
  // The label of a card is about its link, that of a head about all queries: a pinned link may be an exception.
  const label = opening?.cards.find((card) => isShown(card, state))?.label ?? (link ? "" : (ranking.getLabel(layer, head) ?? ""));
  const shape = meta.layers[layer];
  const meaning = ranking.getMeaning(label);
  return (
    <>
      <h2>
        {formatHeadName(meta, layer, head)} <span class="head-title-label" title={formatTitle(meaning, 400)}>{label}</span>
      </h2>
      <p class="head-sentence">
        {link && shape ? (
          <>
            <Sentence parts={describeLink(link, ranking.getLinkAnswer(layer, head), shape, getText)} />.
          </>
        ) : isSearching ? (
          `Looking for the most distinctive head${opening && opening.scored_queries > 0 ? `, from the first ${formatCount(opening.scored_queries)} tokens` : ""}…`
        ) : (
          // Its first sentence, or what comes before a colon.
          formatTitle(meaning.replace(/[.:](\s.*)?$/s, "."), 300)
        )}
      </p>
    </>
  );
}
