// Reads parts of the files of a site by HTTP range requests.
//
// In: the manifest. Out: bytes. A host that ignores ranges is an error, except for files that are small anyway: the page would load
// whole archives, a tile at a time. Memory: none; callers keep what they need.
import { ResponseError } from "../server/transport";
import type { ByteRange, Manifest } from "./manifest";

/** A file that may be read as a whole. */
const MAX_WHOLE_BYTES = 1 << 18;

const IGNORES_RANGES =
  "This host ignores range requests and would send whole archives. Publish the site on a host that answers them with status 206: nginx, Caddy, object stores and most static hosts do; python -m http.server does not.";

export class RangeReader {
  constructor(
    private readonly files: Manifest["files"],
    private readonly send: (url: string, request: RequestInit) => Promise<Response> = (url, request) => fetch(url, request),
  ) {}

  /** A whole file. */
  async readFile(name: string, signal?: AbortSignal): Promise<ArrayBuffer> {
    const answer = await this.#fetch(name, {}, signal);
    return this.#check(name, await answer.arrayBuffer(), this.#describe(name)[0]);
  }

  /** Some bytes of a file. */
  async read(name: string, [offset, length]: ByteRange, signal?: AbortSignal): Promise<ArrayBuffer> {
    const [total] = this.#describe(name);
    if (length === 0) return new ArrayBuffer(0);
    const answer = await this.#fetch(name, { range: `bytes=${offset}-${offset + length - 1}` }, signal);
    if (answer.status === 206) {
      const found = /\/(\d+)$/.exec(answer.headers.get("content-range") ?? "");
      if (found && Number(found[1]) !== total) throw createMismatch(name);
      return this.#check(name, await answer.arrayBuffer(), length);
    }
    if (total > MAX_WHOLE_BYTES) {
      void answer.body?.cancel();
      throw new ResponseError(IGNORES_RANGES, 409);
    }
    return this.#check(name, await answer.arrayBuffer(), total).slice(offset, offset + length);
  }

  #describe(name: string): readonly [bytes: number, sha256: string] {
    const found = this.files[name];
    if (!found) throw new ResponseError(`The manifest of this site does not list ${name}.`, 404);
    return found;
  }

  /** The checksum in the address keeps caches from mixing two publications. */
  async #fetch(name: string, headers: Record<string, string>, signal?: AbortSignal): Promise<Response> {
    const answer = await this.send(`${name}?${this.#describe(name)[1].slice(0, 12)}`, { credentials: "omit", headers, ...(signal && { signal }) });
    if (answer.status === 416) throw createMismatch(name);
    if (!answer.ok) throw new ResponseError(`The host answered ${answer.status} for ${name}.`, answer.status);
    return answer;
  }

  #check(name: string, bytes: ArrayBuffer, expected: number): ArrayBuffer {
    if (bytes.byteLength !== expected) throw createMismatch(name);
    return bytes;
  }
}

function createMismatch(name: string): ResponseError {
  return new ResponseError(`${name} is not the file that the manifest describes: the site was replaced, or not completely uploaded. Reload the page.`, 409);
}

/** A stored response, decompressed; gzip checks its checksum. */
export async function decompress(bytes: ArrayBuffer): Promise<ArrayBuffer> {
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}
