/** HTTP calls to the gateway that served the page. The API key stays in the tab's session. */

import { signal } from "@preact/signals";

const BASE = new URL("..", document.baseURI);
const KEY_ITEM = "corral.key";

/** The API key; empty for none. */
export const apiKey = signal(sessionStorage.getItem(KEY_ITEM) ?? "");
/** Why the server asked for another key; null while it has not. */
export const keyProblem = signal(null);

/** Store the key for this tab, and use it from now on. */
export function setKey(key) {
  sessionStorage.setItem(KEY_ITEM, key);
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

/**
 * Make a request and return its response. Throws ApiError.
 * @param {{query?: object, body?: object|FormData, signal?: AbortSignal, headers?: object}} options
 */
export async function request(method, path, { query, body, signal, headers = {} } = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  headers = { ...headers };
  if (apiKey.value) headers.authorization = `Bearer ${apiKey.value}`;
  const isForm = body instanceof FormData;
  if (body && !isForm) headers["content-type"] = "application/json";
  const response = await fetch(url, {
    method, headers, signal, body: body && !isForm ? JSON.stringify(body) : body, credentials: "omit",
  });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  if (response.status === 401) keyProblem.value = error?.message ?? "An API key is required.";
  throw new ApiError(response.status, error);
}

export const get = async (path, query, options) => (await request("GET", path, { query, ...options })).json();
export const post = async (path, body = {}, options) => (await request("POST", path, { body, ...options })).json();
export const remove = async path => (await request("DELETE", path)).json();

/**
 * Make a request and yield its server-sent events: `{event, id, data}`, with `data` as JSON.
 * Ends at `[DONE]` or at the end of the response. Throws ApiError, also for an error in the stream.
 */
export async function* streamEvents(method, path, options) {
  const response = await request(method, path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const frames = (text + piece.value).split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const event = parseFrame(frame);
        if (event.data === "[DONE]") return;
        if (!event.data) continue;
        event.data = JSON.parse(event.data);
        if (event.data.error?.message && !event.data.object) throw new ApiError(response.status, event.data.error);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
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
  const blob = await (await request("GET", path)).blob();
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
