import assert from "node:assert/strict";
import { test } from "node:test";
import { orderRequests } from "../src/server/request_order";
import { paths } from "../src/server/protocol";
import type { Transport } from "../src/server/transport";

const turn = (milliseconds = 0): Promise<void> => new Promise((resolve) => setTimeout(resolve, milliseconds));

class Server {
  sent: string[] = [];
  readonly #answers = new Map<string, () => void>();
  readonly transport = {
    json: (path: string) => this.#receive(path),
    bytes: (path: string) => this.#receive(path),
  } as unknown as Transport;

  #receive(path: string): Promise<unknown> {
    this.sent.push(path);
    return new Promise((resolve) => this.#answers.set(path, () => resolve(path)));
  }

  async answer(path: string): Promise<void> {
    this.#answers.get(path)?.();
    await turn();
  }
}

const TILE = paths.tile("aa", 3, 1, 0, 0, 0, "mean");
const PREVIEW = paths.preview("aa", 3, 1, "mean");
const QUERY = paths.query("aa", 3, 1, 7);
const [PROFILE, HEADS, PREDICTIONS] = [paths.profile("aa", 3, 1), paths.heads("aa", 3), paths.predictions("aa", 7, 8)];

test("until the first heatmap is drawn, only what it needs is sent", async () => {
  const server = new Server();
  const ordered = orderRequests(server.transport, 60_000);
  for (const path of [QUERY, paths.meta("aa"), PROFILE, paths.opening("aa"), "session", paths.tokens("aa", 3, "key", 0, 9)]) void ordered.json(path);
  for (const path of [paths.marginal("aa", 3, 1, "entropy", 0, 0), TILE, PREVIEW]) void ordered.bytes(path);
  await turn();
  assert.deepEqual(server.sent, [paths.meta("aa"), paths.opening("aa"), "session", paths.tokens("aa", 3, "key", 0, 9), TILE, PREVIEW]);
  ordered.release();
  await turn();
  assert.ok(server.sent.includes(QUERY) && server.sent.includes(PROFILE));
});

test("where no heatmap is drawn, the rest is sent after a while", async () => {
  const server = new Server();
  void orderRequests(server.transport, 20).json(QUERY);
  await turn();
  assert.deepEqual(server.sent, []);
  await turn(40);
  assert.deepEqual(server.sent, [QUERY]);
});

test("slow answers use two connections, and others do not wait for them", async () => {
  const server = new Server();
  const ordered = orderRequests(server.transport, 60_000);
  ordered.release();
  for (const path of [PROFILE, HEADS, PREDICTIONS]) void ordered.json(path);
  void ordered.json(QUERY);
  await turn();
  assert.deepEqual(server.sent.toSorted(), [PROFILE, HEADS, QUERY].toSorted());
  await server.answer(HEADS);
  assert.equal(server.sent.at(-1), PREDICTIONS);
});

test("what is cancelled while it waits is not sent and keeps nobody waiting", async () => {
  const server = new Server();
  const ordered = orderRequests(server.transport, 60_000);
  const cancelled = new AbortController();
  const cause = ordered.json(QUERY, cancelled.signal).catch((error: unknown) => (error as Error).name);
  const other = ordered.json(PROFILE, cancelled.signal).catch((error: unknown) => (error as Error).name);
  cancelled.abort();
  ordered.release();
  assert.deepEqual([await cause, await other], ["AbortError", "AbortError"]);
  for (const path of [HEADS, PREDICTIONS]) void ordered.json(path);
  await turn();
  assert.deepEqual(server.sent, [HEADS, PREDICTIONS]);
});
