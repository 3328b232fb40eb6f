// Runs `eve/client`, as it is published, for a test in Python. Its working directory is where the package is installed.
//
// One line of JSON is one wish, and one or more lines of JSON come back under its id. What a call returns is told as it is;
// objects with a life of their own (sessions, responses, streams) stay here and are told as {"$": NAME}.
//
//   {"id": 1, "new": "Client", "args": [{"host": ...}]}                an object of the package
//   {"id": 2, "on": "o1", "call": ["sessions", "create"], "args": []}  a method of it
//   {"id": 3, "on": "o1", "get": ["state"]}                            a property of it
//   {"id": 4, "read": "o2"}                                            {"event": ...} for each, {"value": null} at its end
//   {"id": 5, "abort": "a1"}                                           ends what was called with {"$signal": "a1"}
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const find = createRequire(`${process.cwd()}/`);
const eve = await import(pathToFileURL(find.resolve("eve/client")).href);

const kept = new Map();
const aborts = new Map();

function abort(name) {
  if (!aborts.has(name)) aborts.set(name, new AbortController());
  return aborts.get(name);
}

function keep(object) {
  const name = `o${kept.size + 1}`;
  kept.set(name, object);
  return { $: name };
}

function taken(value) {
  if (Array.isArray(value)) return value.map(taken);
  if (value === null || typeof value !== "object") return value;
  if (value.$ !== undefined) return kept.get(value.$);
  if (value.$signal !== undefined) return abort(value.$signal).signal;
  if (value.$reducer !== undefined) return eve[value.$reducer]();
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, taken(inner)]));
}

function told(value) {
  if (Array.isArray(value)) return value.map(told);
  if (value === null || typeof value !== "object") return value ?? null;
  if (Object.getPrototypeOf(value) !== Object.prototype) {
    return value instanceof Error ? failure(value) : value.toJSON !== undefined ? value.toJSON() : keep(value);
  }
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, told(inner)]));
}

function failure(error) {
  const { name, message, status, code, body } = error;
  return { kind: error.constructor.name, name, message, status, code, body };
}

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function done(wish) {
  if (wish.new !== undefined) return keep(new eve[wish.new](...taken(wish.args ?? [])));
  if (wish.abort !== undefined) return abort(wish.abort).abort();
  if (wish.read !== undefined) {
    for await (const event of kept.get(wish.read)) say({ id: wish.id, event });
    return null;
  }
  const path = wish.call ?? wish.get;
  const owner = path.slice(0, -1).reduce((object, name) => object[name], kept.get(wish.on));
  const member = owner[path.at(-1)];
  return wish.call === undefined ? member : await member.apply(owner, taken(wish.args ?? []));
}

process.on("unhandledRejection", (error) => say({ unhandled: failure(error) }));

for await (const line of createInterface({ input: process.stdin })) {
  const wish = JSON.parse(line);
  done(wish).then(
    (value) => say({ id: wish.id, value: told(value) }),
    (error) => say({ id: wish.id, error: failure(error) }),
  );
}
process.exit(0);
