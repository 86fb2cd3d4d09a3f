/** HTTP calls to the gateway that served the page. The API key stays in the tab's session. */

import { signal } from "@preact/signals";
import { readItem, writeItem } from "./browser_storage.js";

const BASE = new URL("..", document.baseURI);
const KEY_ITEM = "corral.key";

/** The API key; empty for none. */
export const apiKey = signal(readItem("sessionStorage", KEY_ITEM) ?? "");
/** Why the server asked for another key; null while it has not. */
export const keyProblem = signal(null);

/** Store the key for this tab, and use it from now on. Throws an Error if it can be no key. */
export function setKey(key) {
  const [odd] = /[^\x21-\x7e]/u.exec(key) ?? [];
  if (odd) throw new Error(`"${odd}" is in no API key.`);
  writeItem("sessionStorage", KEY_ITEM, key);
  apiKey.value = key;
  keyProblem.value = null;
}

/** A response that is not 2xx, with the message, code and field of the error envelope. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
    this.param = error?.param ?? null;
  }
}

const BROKEN = "The connection to the server broke before the answer was whole.";
const UNREACHABLE = [429, 502, 503, 504]; // it has too much to do, or a proxy says that it starts
const MAX_PAUSE_S = 8;
/** The last event of a streamed response; the other streams end with `[DONE]`. */
const LAST_EVENT = /^response\.(completed|failed|incomplete|cancelled)$/;

/** The network, or the server, was not there, or went away. */
export class ConnectionError extends Error {}

/** Whether an error, also one in a stream, says that the server, or a service behind it, is not there for now. */
export const isAway = error => error instanceof ConnectionError || UNREACHABLE.includes(error.status) || error.code === "upstream_unavailable";

/** Await what the network brings; its errors are in words for people. */
async function receive(promise, problem) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ConnectionError(problem);
  }
}

/**
 * Make a request and return its response. Throws ApiError, or an Error if there is no answer.
 * @param {{query?: object, body?: object|FormData, signal?: AbortSignal, onProgress?: (sent: number, all: number) => void}} options
 *   `onProgress` is told how many bytes of a FormData are sent
 */
export async function request(method, path, { query, body, signal, onProgress } = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  const headers = {};
  if (apiKey.value) headers.authorization = `Bearer ${apiKey.value}`;
  const isForm = body instanceof FormData;
  if (body && !isForm) headers["content-type"] = "application/json";
  const answer = isForm ? sendForm(method, url, headers, body, signal, onProgress)
    : fetch(url, { method, headers, signal, body: body && JSON.stringify(body), credentials: "omit" });
  const response = await receive(answer, "The server cannot be reached.");
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  if (response.status === 401) keyProblem.value = error?.message ?? "An API key is required.";
  throw new ApiError(response.status, error);
}

/** Send a form, as `fetch` does, which tells nothing of its progress. */
function sendForm(method, url, headers, form, signal, onProgress = () => {}) {
  const sending = new XMLHttpRequest();
  sending.open(method, url);
  sending.responseType = "blob";
  for (const [name, value] of Object.entries(headers)) sending.setRequestHeader(name, value);
  return new Promise((resolve, reject) => {
    sending.upload.onprogress = ({ loaded, total }) => onProgress(loaded, total);
    sending.onload = () => resolve(new Response(sending.response, { status: sending.status }));
    sending.onerror = reject;
    sending.onabort = () => reject(new DOMException("It was cancelled.", "AbortError"));
    signal?.addEventListener("abort", () => sending.abort());
    sending.send(form);
  });
}

/** Make a request and return the JSON of its answer. */
async function call(method, path, options) {
  const response = await request(method, path, options);
  checkType(response, "json");
  return receive(response.json(), BROKEN);
}

/** Throw an Error if an answer is not of a media type, as that of a proxy that asks for a login. */
function checkType(response, wanted) {
  const type = response.headers.get("content-type") ?? "";
  if (!type.includes(wanted)) throw new Error(`Something else than Corral answered${type && ` (${type})`}: is a proxy in between?`);
}

export const get = (path, query, options) => call("GET", path, { query, ...options });
/** All objects of a list, oldest first. */
export async function getAll(path, query) {
  const found = [];
  for (let after; ;) {
    const page = await get(path, { ...query, limit: 100, order: "asc", after });
    found.push(...page.data);
    if (!page.has_more) return found;
    after = page.last_id;
  }
}

export const post = (path, body = {}, options) => call("POST", path, { body, ...options });
export const remove = path => call("DELETE", path);

/** Create an object, and then its parts at `name`, all of them or none; returns its id. */
export async function postWhole(path, body, name, parts) {
  const { id } = await post(path, body);
  try {
    for (const part of parts) await post(`${path}/${id}/${name}`, part);
  } catch (error) {
    await remove(`${path}/${id}`).catch(() => { error.message += ` A part of it is stored as ${id}.`; });
    throw error;
  }
  return id;
}

/**
 * Make a request and yield its server-sent events: `{event, id, data}`, with `data` as JSON.
 * Ends after the last event. Throws ApiError, also for an error in the stream, or an Error if the
 * stream ends before.
 */
export async function* streamEvents(method, path, options) {
  const response = await request(method, path, options);
  checkType(response, "event-stream");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const piece = await receive(reader.read(), BROKEN);
      if (piece.done) throw new ConnectionError(BROKEN);
      const frames = (text + piece.value).split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const event = parseFrame(frame);
        if (event.data === "[DONE]") return;
        if (!event.data) continue;
        event.data = JSON.parse(event.data);
        if (event.data.error?.message && !event.data.object) throw new ApiError(response.status, event.data.error);
        yield event;
        if (LAST_EVENT.test(event.data.type)) return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Yield the events of a stream that the server keeps, as `streamEvents` does. After a broken connection it goes on behind
 * the last event, as soon as the server, and what is behind it, can be reached again; `{event: "broken"}` comes before.
 * `keptAt` finds the path of the kept events in an event of a stream that another method began.
 */
export async function* followEvents(method, path, options, keptAt = () => undefined) {
  let next = { method, path, options };
  let kept = method === "GET" ? path : undefined;
  for (let tries = 0; ; tries++) {
    try {
      for await (const event of streamEvents(next.method, next.path, next.options)) {
        tries = 0;
        kept ??= keptAt(event);
        if (kept && event.id) next = { method: "GET", path: kept, options: { ...options, body: undefined, query: { ...options.query, starting_after: event.id } } };
        yield event;
      }
      return;
    } catch (error) {
      if (!isAway(error) || next.method !== "GET") throw error;
      yield { event: "broken" };
      await pause(Math.min(2 ** tries, MAX_PAUSE_S), options.signal);
    }
  }
}

/** Wait some seconds, or until the browser is online again, or nobody waits. */
async function pause(seconds, signal) {
  const ended = new AbortController();
  await new Promise(resolve => {
    setTimeout(resolve, seconds * 1000);
    addEventListener("online", resolve, { signal: ended.signal });
    signal?.addEventListener("abort", resolve, { signal: ended.signal });
    if (signal?.aborted) resolve();
  });
  ended.abort(); // no listener stays
}

function parseFrame(frame) {
  const event = { event: "message", id: "", data: "" };
  for (const line of frame.split("\n")) {
    const [, field, value] = /^(\w*): ?(.*)$/.exec(line) ?? [];
    if (field === "data") event.data += value;
    else if (field in event) event[field] = value;
  }
  return event;
}

/** Offer the bytes of a stored file as a download. */
export async function download(path, name) {
  const response = await request("GET", path);
  saveFile(name, await receive(response.blob(), BROKEN));
}

/** Offer bytes or a text as a file. */
export function saveFile(name, content) {
  const blob = content instanceof Blob ? content : new Blob([content]);
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
