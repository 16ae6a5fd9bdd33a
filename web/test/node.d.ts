// The few things of Node that the tests use; enough that no package of types is needed.
declare module "node:test" {
  export function test(name: string, body: () => void | Promise<void>): void;
  export function describe(name: string, body: () => void): void;
  export function it(name: string, body: () => void | Promise<void>): void;
  export function beforeEach(body: () => void | Promise<void>): void;
  export function afterEach(body: () => void | Promise<void>): void;
  export const mock: {
    timers: { enable(options: { apis: string[]; now?: number }): void; tick(milliseconds: number): void; reset(): void };
  };
  export default test;
}

declare module "node:assert/strict" {
  interface Assert {
    (value: unknown, message?: string): asserts value;
    ok(value: unknown, message?: string): asserts value;
    equal(actual: unknown, expected: unknown, message?: string): void;
    notEqual(actual: unknown, expected: unknown, message?: string): void;
    deepEqual(actual: unknown, expected: unknown, message?: string): void;
    notDeepEqual(actual: unknown, expected: unknown, message?: string): void;
    match(value: string, pattern: RegExp, message?: string): void;
    doesNotMatch(value: string, pattern: RegExp, message?: string): void;
    throws(body: () => unknown, expected?: RegExp | (new (...parameters: never[]) => Error), message?: string): void;
    rejects(body: Promise<unknown> | (() => Promise<unknown>), expected?: RegExp | (new (...parameters: never[]) => Error)): Promise<void>;
    fail(message?: string): never;
  }
  const assert: Assert;
  export default assert;
}

declare module "node:fs" {
  export function readFileSync(path: string, encoding: "utf8"): string;
  export function existsSync(path: string): boolean;
  export function readdirSync(path: string, options?: { recursive: boolean }): string[];
}

declare module "node:path" {
  export function dirname(path: string): string;
  export function join(...parts: string[]): string;
  export function normalize(path: string): string;
}
