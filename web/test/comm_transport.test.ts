import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { createCommTransport, type WidgetModel } from "../src/server/comm_transport";
import { ResponseError, type Transport } from "../src/server/transport";

interface Sent {
  id?: number;
  path?: string;
  body?: unknown;
  from?: number;
  cancel?: number;
}

const VIEW = 7;

type Listener = (...values: never[]) => void;

/** A widget's model, as all views of it share it. */
class Kernel implements WidgetModel {
  readonly sent: Sent[] = [];
  readonly listeners = new Map<string, Set<Listener>>();
  dead = false;
  get(): unknown {
    return undefined;
  }
  set(): void {}
  save_changes(): void {}
  send(content: Sent): void {
    if (this.dead) throw new Error("Cannot send");
    this.sent.push(content);
  }
  on(name: string, listener: Listener): void {
    this.listeners.set(name, (this.listeners.get(name) ?? new Set()).add(listener));
  }
  off(name: string, listener: Listener): void {
    this.listeners.get(name)?.delete(listener);
  }
  tell(name: string, ...values: unknown[]): void {
    for (const listener of this.listeners.get(name) ?? []) listener(...(values as never[]));
  }
  /** Answer the question requested so many before the last. */
  answer(text: string | null, { status = 200, more = false, back = 0, offset = 3 } = {}): void {
    const bytes = new TextEncoder().encode(`${"#".repeat(offset)}${text ?? ""}`);
    const requested = this.sent.filter(({ path }) => path !== undefined).at(-1 - back);
    this.tell("msg:custom", { id: requested?.id, status, more }, text === null ? [] : [new DataView(bytes.buffer, offset)]);
  }
}

function connected(): { kernel: Kernel; transport: Transport; leave: AbortController; waits: boolean[] } {
  const kernel = new Kernel();
  const leave = new AbortController();
  const waits: boolean[] = [];
  const transport = createCommTransport(kernel, VIEW, leave.signal, (waiting) => waits.push(waiting));
  return { kernel, transport, leave, waits };
}

test("a request carries its path, its body and its view, so that the kernel can cancel it with the view", async () => {
  const { kernel, transport } = connected();
  const requested = transport.json("session");
  kernel.answer('{"a":1}');
  assert.deepEqual(await requested, { a: 1 });
  const posted = transport.post("run", { text: "x" });
  kernel.answer("[]");
  await posted;
  assert.deepEqual(
    kernel.sent.map(({ path, body, from }) => [path, body, from]),
    [
      ["session", undefined, VIEW],
      ["run", { text: "x" }, VIEW],
    ],
  );
});

test("bytes are those of the buffer view, for every buffer type", async () => {
  const { kernel, transport } = connected();
  const viewed = transport.bytes("tile");
  kernel.answer("abc");
  assert.deepEqual(new Uint8Array((await viewed) ?? []), new TextEncoder().encode("abc"));
  const plain = transport.bytes("tile");
  kernel.tell("msg:custom", { id: kernel.sent.at(-1)?.id, status: 200, more: false }, [new Uint8Array([1, 2]).buffer]);
  assert.deepEqual(new Uint8Array((await plain) ?? []), new Uint8Array([1, 2]));
  const nothing = transport.bytes("tile");
  kernel.answer("", { status: 204 });
  assert.equal(await nothing, null);
});

test("responses match their requests in any order, and those of other views are ignored", async () => {
  const { kernel, transport } = connected();
  const [first, second] = [transport.json("one"), transport.json("two")];
  kernel.tell("msg:custom", { id: 5, status: 200, more: false }, []);
  kernel.tell("msg:custom", { something: "else" }, []);
  kernel.answer("2");
  kernel.answer("1", { back: 1 });
  assert.deepEqual(await Promise.all([first, second]), [1, 2]);
  assert.equal(new Set(kernel.sent.map(({ id }) => id)).size, 2);
});

test("an error response has the kernel's message", async () => {
  const { kernel, transport } = connected();
  const requested = transport.json("nothing");
  kernel.answer('{"error":"There is nothing."}', { status: 404 });
  await requested.then(
    () => assert.fail("refused"),
    (error: unknown) => {
      assert(error instanceof ResponseError);
      assert.deepEqual([error.message, error.status], ["There is nothing.", 404]);
    },
  );
});

test("a stream yields each line as it arrives, and leaving it sends a cancel message", async () => {
  const { kernel, transport } = connected();
  const lines = transport.stream<number>("generate", {})[Symbol.asyncIterator]();
  const first = lines.next();
  kernel.answer("1\n", { more: true });
  assert.deepEqual(await first, { value: 1, done: false });
  kernel.answer("2\n3", { more: true });
  assert.deepEqual(await lines.next(), { value: 2, done: false });
  await lines.return?.();
  assert.deepEqual(kernel.sent.at(-1), { cancel: kernel.sent[0]?.id });
  const whole: number[] = [];
  const reading = (async () => {
    for await (const line of transport.stream<number>("generate", {})) whole.push(line);
  })();
  kernel.answer("4\n", { more: true });
  kernel.answer("5\n", { more: true });
  kernel.answer("", { more: false });
  await reading;
  assert.deepEqual(whole, [4, 5]);
  assert.equal(kernel.sent.length, 3);
});

test("cancelling rejects at once and sends a cancel message, but not after the response", async () => {
  const { kernel, transport } = connected();
  const stop = new AbortController();
  const answered = transport.json("one", stop.signal);
  kernel.answer("1");
  await answered;
  const requested = transport.json("two", stop.signal);
  stop.abort();
  await assert.rejects(requested, /abort/i);
  assert.deepEqual(kernel.sent.slice(2), [{ cancel: kernel.sent[1]?.id }]);
  kernel.answer("2");
  await assert.rejects(transport.json("three", stop.signal), /abort/i);
  assert.equal(kernel.sent.length, 3);
});

test("onWaiting is called after a while, and again when a response arrives", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const { kernel, transport, waits } = connected();
    const requested = [transport.json("one"), transport.json("two")];
    mock.timers.tick(1900);
    assert.deepEqual(waits, []);
    mock.timers.tick(200);
    assert.deepEqual(waits, [true]);
    kernel.answer("1");
    assert.deepEqual(waits, [true, false]);
    mock.timers.tick(2100);
    assert.deepEqual(waits, [true, false, true]);
    kernel.answer("1", { back: 1 });
    mock.timers.tick(10_000);
    assert.deepEqual(waits, [true, false, true, false]);
    await Promise.all(requested);
  } finally {
    mock.timers.reset();
  }
});

test("a lost kernel rejects pending and new requests", async () => {
  const { kernel, transport } = connected();
  const requested = transport.json("one");
  kernel.tell("comm_live_update");
  await assert.rejects(requested, TypeError);
  kernel.dead = true;
  await assert.rejects(transport.bytes("two"), TypeError);
});

test("aborting rejects all requests and removes the listeners", async () => {
  const { kernel, transport, leave } = connected();
  const requested = transport.json("one");
  leave.abort();
  await assert.rejects(requested, /abort/i);
  await assert.rejects(transport.json("two"), /abort/i);
  assert.deepEqual([...kernel.listeners.values()].map(({ size }) => size), [0, 0]);
  assert.equal(kernel.sent.length, 1);
});
