/** Which weights are the strongest: the rank of one in its row, and the largest of a block. */

export interface Rank {
  readonly rank: number;
  /** False: only known to be at this rank or after. */
  readonly exact: boolean;
}

/** The rank of a key in its query's row: counted if all weights are there, else from the list of the strongest. */
export function computeRank(
  key: number,
  weight: number,
  row: { readonly values: ArrayLike<number>; readonly stride: number },
  strongest: readonly (readonly [number, number])[],
): Rank {
  const listed = strongest.findIndex(([position]) => position === key);
  if (listed >= 0) return { rank: listed + 1, exact: true };
  if (row.stride > 1) return { rank: strongest.length + 1, exact: false };
  let greater = 0;
  for (let index = 0; index < row.values.length; index++) {
    // Equal weights keep the order of their positions, as in the list.
    const other = row.values[index] ?? NaN;
    if (other > weight || (other === weight && index < key)) greater += 1;
  }
  return { rank: greater + 1, exact: true };
}

export interface Link {
  readonly query: number;
  readonly key: number;
  readonly weight: number;
}

/** The largest `count` of a block of weights, row-major from (query, key); NaN is masked and never counts. */
export function findStrongest(
  weights: ArrayLike<number>,
  columns: number,
  from: { readonly query: number; readonly key: number },
  count: number,
  isWanted: (query: number, key: number) => boolean = () => true,
): Link[] {
  const best: Link[] = [];
  for (let index = 0; index < weights.length; index++) {
    const weight = weights[index] ?? NaN;
    const last = best[best.length - 1];
    if (!(weight > 0) || (best.length === count && last && weight <= last.weight)) continue;
    const link: Link = { query: from.query + Math.floor(index / columns), key: from.key + (index % columns), weight };
    if (!isWanted(link.query, link.key)) continue;
    let place = best.length;
    while (place > 0 && (best[place - 1]?.weight ?? Infinity) < weight) place -= 1;
    best.splice(place, 0, link);
    if (best.length > count) best.pop();
  }
  return best;
}
