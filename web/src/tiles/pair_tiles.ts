// Two heads in one picture: tiles made of the tiles of both, where both are there.
//
// In: two sources of tiles of one shape. Out: a source of the same kind. What is made is kept as long as the tiles it is made of.
import type { Channel } from "../server/protocol";
import type { TileAddress } from "../geometry/zoom_plan";
import { encodeRatio } from "./ratio_codec";
import type { TileResult, LoadedTile, TileSource, TileRequest } from "./tile_store";

type Both<Value> = readonly [one: Value, other: Value];

/**
 * Split: A below the diagonal and on it, B turned over above it, where a column looks at a row; both are square, of one length.
 * Else A divided by B, as codes of `ratio.ts`.
 */
export class PairTiles implements TileSource {
  readonly #combined = new WeakMap<LoadedTile, { other: LoadedTile; made: LoadedTile }>();

  constructor(
    readonly sources: Both<TileSource>,
    readonly isSplit: boolean,
  ) {}

  get(address: TileAddress, channel: Channel): TileResult | undefined {
    const [here, there] = this.#locate(address);
    const [one, other] = [here && this.sources[0].get(here, channel), there && this.sources[1].get(there, channel)];
    if (!there) return one;
    if (!here) return typeof other === "object" ? this.#combine(other, other, (row, column) => getCode(other, column, row)) : other;
    // There when both are; masked or failed when one is.
    for (const state of ["failed", "empty"] as const) if (one === state || other === state) return state;
    if (typeof one !== "object" || typeof other !== "object") return undefined;
    return this.#combine(one, other, (row, column) =>
      this.isSplit
        ? column > row ? getCode(other, column, row) : getCode(one, row, column)
        : encodeRatio(getCode(one, row, column), getCode(other, row, column)),
    );
  }

  request(list: readonly TileRequest[], atOnce = false): void {
    for (const which of [0, 1] as const) {
      const own = list.flatMap((wanted) => {
        const place = this.#locate(wanted)[which];
        return place ? [{ ...wanted, ...place }] : [];
      });
      this.sources[which].request(own, atOnce);
    }
  }

  isUnavailable(address: TileAddress, channel: Channel): boolean {
    return this.#locate(address).some((place, which) => place && this.sources[which]?.isUnavailable(place, channel));
  }

  /** Where each of the two has what is drawn in a place; undefined where it is not drawn. */
  #locate({ z, y, x }: TileAddress): Both<TileAddress | undefined> {
    if (!this.isSplit) return [{ z, y, x }, { z, y, x }];
    return [y >= x ? { z, y, x } : undefined, y <= x ? { z, y: x, x: y } : undefined];
  }

  #combine(one: LoadedTile, other: LoadedTile, code: (row: number, column: number) => number): LoadedTile {
    const before = this.#combined.get(one);
    if (before?.other === other) return before.made;
    // Turned over, rows and columns change places; two tiles of one place have the same of both.
    const [rows, columns] = one === other ? [one.columns, one.rows] : [one.rows, one.columns];
    const codes = new Uint8Array(rows * columns);
    for (let row = 0, index = 0; row < rows; row++) for (let column = 0; column < columns; column++) codes[index++] = code(row, column);
    const made = {
      ...one,
      ...{ rows, columns, codes },
      hasMasked: codes.includes(0),
      partial: one.partial || other.partial,
      log2min: Math.min(one.log2min, other.log2min),
      log2max: Math.max(one.log2max, other.log2max),
    };
    this.#combined.set(one, { other, made });
    return made;
  }
}

function getCode({ codes, columns }: LoadedTile, row: number, column: number): number {
  return codes[row * columns + column] ?? 0;
}
