// Two heads in one picture: combines the tiles of both, where both are loaded.
//
// In: two sources of tiles of one shape. Out: a source of the same kind. Combined tiles are kept as long as their sources.
import type { Channel } from "../server/protocol";
import type { TileAddress } from "../geometry/zoom_plan";
import { encodeRatio } from "./ratio_codec";
import type { LoadedTile, TileRequest, TileResult, TileSource } from "./tile_store";

type Both<Value> = readonly [one: Value, other: Value];

/**
 * Split: A on and below the diagonal, B transposed above it, where a column attends to a row; both are square, of one length.
 * Otherwise A divided by B, as codes of `ratio_codec.ts`.
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
    if (!here) return typeof other === "object" ? this.#combine(address, other, other, (row, column) => getCode(other, column, row)) : other;
    // Loaded when both are; masked or failed when one is.
    for (const state of ["failed", "empty"] as const) if (one === state || other === state) return state;
    if (typeof one !== "object" || typeof other !== "object") return undefined;
    return this.#combine(address, one, other, (row, column) =>
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

  /** The tile of each head that is drawn at an address; undefined where a head is not drawn. */
  #locate({ z, y, x }: TileAddress): Both<TileAddress | undefined> {
    if (!this.isSplit) return [{ z, y, x }, { z, y, x }];
    return [y >= x ? { z, y, x } : undefined, y <= x ? { z, y: x, x: y } : undefined];
  }

  #combine({ y, x }: TileAddress, one: LoadedTile, other: LoadedTile, code: (row: number, column: number) => number): LoadedTile {
    const before = this.#combined.get(one);
    if (before?.other === other) return before.made;
    // A transposed tile swaps rows and columns; otherwise both tiles have the same shape.
    const [rows, columns] = one === other ? [one.columns, one.rows] : [one.rows, one.columns];
    const codes = new Uint8Array(rows * columns);
    for (let row = 0, index = 0; row < rows; row++) for (let column = 0; column < columns; column++) codes[index++] = code(row, column);
    const made = {
      ...one,
      ...{ rows, columns, codes, y, x },
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
