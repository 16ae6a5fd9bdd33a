/** The attention pattern as a grid of cells: a click, or the arrow keys, choose the pair. */

import { useRef } from "preact/hooks";
import type { JSX } from "preact";
import { formatToken } from "../paint/token_text";
import { isAllowed, type MaskKind, type Matrix } from "./attention";
import { formatNumber } from "./format";

export interface PatternGridOptions {
  readonly queryTokens: readonly string[];
  readonly keyTokens: readonly string[];
  readonly weights: Matrix;
  readonly mask: MaskKind;
  readonly query: number;
  readonly chosenKey: number;
  /** The weights of the chosen query are still to be predicted. */
  readonly isRowHidden: boolean;
  choose(query: number, key: number): void;
}

const MAX_NUMBERS = 12;

export function PatternGrid({ queryTokens, keyTokens, weights, mask, query, chosenKey: key, isRowHidden, choose }: PatternGridOptions): JSX.Element {
  const table = useRef<HTMLTableElement>(null);
  const hasNumbers = keyTokens.length <= MAX_NUMBERS;
  const select = (toQuery: number, toKey: number): void => {
    choose(toQuery, toKey);
    table.current?.querySelector<HTMLElement>(`[data-pair="${toQuery}/${toKey}"]`)?.focus();
  };
  const move = (event: KeyboardEvent): void => {
    const targets: Record<string, readonly [number, number]> = {
      ArrowUp: [query - 1, key],
      ArrowDown: [query + 1, key],
      ArrowLeft: [query, key - 1],
      ArrowRight: [query, key + 1],
      Home: [query, 0],
      End: [query, keyTokens.length - 1],
    };
    const target = targets[event.key];
    if (!target) return;
    event.preventDefault();
    select(clamp(target[0], queryTokens.length), clamp(target[1], keyTokens.length));
  };
  return (
    <div class="pattern">
      <table ref={table} role="grid" aria-label="Attention weights: a row per query, a column per key" class={hasNumbers ? "" : "small"} onKeyDown={move}>
        <thead>
          <tr>
            <td />
            {keyTokens.map((token, column) => (
              <th key={column} scope="col" class={column === key ? "chosen" : ""}>
                <bdi class="token">{formatToken(token, 12)}</bdi>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {queryTokens.map((token, row) => (
            <tr key={row} class={row === query ? "chosen" : ""}>
              <th scope="row" title="Choose this query" onClick={() => select(row, getLargest(weights[row] ?? []))}>
                <bdi class="token">{formatToken(token, 12)}</bdi>
              </th>
              {keyTokens.map((keyToken, column) => {
                const weight = weights[row]?.[column] ?? 0;
                const isMasked = !isAllowed(mask, row, column);
                const isHidden = isRowHidden && row === query && !isMasked;
                const text = isMasked ? "masked" : isHidden ? "? not shown yet" : weight.toFixed(2);
                const isChosen = row === query && column === key;
                return (
                  <td
                    key={column}
                    role="gridcell"
                    data-pair={`${row}/${column}`}
                    tabIndex={isChosen ? 0 : -1}
                    aria-selected={isChosen}
                    aria-label={`query ${row + 1} ${formatToken(token)}, key ${column + 1} ${formatToken(keyToken)}: ${text}`}
                    title={`${formatToken(token)} → ${formatToken(keyToken)}: ${isMasked || isHidden ? text : formatNumber(weight)}`}
                    class={isMasked ? "masked" : ""}
                    style={{ backgroundColor: isMasked || isHidden ? "" : `rgb(var(--gaze-colour) / ${(0.5 * weight).toFixed(3)})` }}
                    onClick={() => select(row, column)}
                  >
                    {isHidden ? "?" : hasNumbers && !isMasked ? weight.toFixed(2) : ""}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function clamp(index: number, count: number): number {
  return Math.min(count - 1, Math.max(0, index));
}

function getLargest(weights: readonly number[]): number {
  return Math.max(0, weights.indexOf(Math.max(...weights)));
}
