/** A map of limited size that drops its least recently used entry first. */

export class LruCache<Key, Value extends NonNullable<unknown> | null> {
  readonly #entries = new Map<Key, Value>();

  constructor(private readonly maxSize: number) {}

  get(key: Key): Value | undefined {
    const value = this.#entries.get(key);
    if (value !== undefined) this.set(key, value);
    return value;
  }

  set(key: Key, value: Value): void {
    this.#entries.delete(key);
    this.#entries.set(key, value);
    const [oldest] = this.#entries.keys();
    if (this.#entries.size > this.maxSize) this.#entries.delete(oldest as Key);
  }

  delete(key: Key): void {
    this.#entries.delete(key);
  }

  clear(): void {
    this.#entries.clear();
  }
}
