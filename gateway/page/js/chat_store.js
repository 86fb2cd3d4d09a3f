/** The chats that this browser keeps, in IndexedDB; other tabs are told of changes. */

import { notify } from "./ui.js";

const CHATS = "chats";
const MESSAGES = "messages"; // each of one chat, in the index CHAT
const CHAT = "chat";
const others = new BroadcastChannel("corral.chats");
let opening = null;
let isTold = false;

/** Call a function with the id of each chat that another tab has changed, and those of deleted messages; returns what ends that. */
export function watchChats(changed) {
  const listen = ({ data: { id, gone } }) => changed(id, gone);
  others.addEventListener("message", listen);
  return () => others.removeEventListener("message", listen);
}

function openDatabase() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("corral", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(CHATS, { keyPath: "id" });
      request.result.createObjectStore(MESSAGES, { keyPath: "id" }).createIndex(CHAT, CHAT);
    };
    request.onsuccess = () => {
      request.result.onclose = () => { opening = null; }; // the user has cleared the browser's data
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  return opening;
}

/** Run `use` in a transaction, which ends before the result is returned. */
async function transact(mode, use) {
  const transaction = (await openDatabase()).transaction([CHATS, MESSAGES], mode);
  const request = use(transaction.objectStore(CHATS), transaction.objectStore(MESSAGES));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Write, and tell other tabs; returns whether the browser keeps it, and tells the user once why not. */
async function write(id, use, gone = []) {
  try {
    await transact("readwrite", use);
    others.postMessage({ id, gone });
    isTold = false;
    return true;
  } catch (error) {
    const isFull = error?.name === "QuotaExceededError";
    if (!isTold) notify(`This chat is not kept: ${isFull ? "the browser's storage is full. Delete chats, or files in them." : error?.message}`, true);
    isTold = true;
    return false;
  }
}

/** Store a new chat, `{id, title, isPinned, changedAt, leaf}`, with its messages. */
export const addChat = (chat, nodes) => write(chat.id, (chats, messages) => {
  chats.put(chat);
  for (const node of nodes) messages.put(node);
});

/** Change fields of a stored chat, store some of its messages, and delete those with some ids. One that was deleted stays deleted. */
export const updateChat = (id, changes, nodes = [], gone = []) => write(id, (chats, messages) => {
  chats.get(id).onsuccess = ({ target: { result: chat } }) => {
    if (!chat) return;
    chats.put({ ...chat, ...changes });
    for (const node of nodes) messages.put(node);
    for (const each of gone) messages.delete(each);
  };
}, gone);

/**
 * Change a stored message before any other tab does: `change` returns the new one, or null to leave it as it is. Returns the
 * new one; null if it was left, or there is none.
 */
export async function changeMessage(id, change) {
  let changed = null;
  await transact("readwrite", (_, messages) => {
    messages.get(id).onsuccess = ({ target: { result: message } }) => {
      changed = message ? change(message) : null;
      if (changed) messages.put(changed);
    };
  });
  if (changed) others.postMessage({ id: changed.chat, gone: [] });
  return changed;
}

export const deleteChat = id => write(id, (chats, messages) => {
  chats.delete(id);
  messages.index(CHAT).openKeyCursor(id).onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    messages.delete(cursor.primaryKey);
    cursor.continue();
  };
});

/** A chat and its messages, oldest first: `{chat, nodes}`; null if there is none. */
export async function readChat(id) {
  const chat = await transact("readonly", chats => chats.get(id));
  if (!chat) return null;
  const nodes = await transact("readonly", (_, messages) => messages.index(CHAT).getAll(id));
  return { chat, nodes: nodes.sort((one, other) => one.at - other.at) };
}

/** All chats: pinned ones first, then those that changed last. */
export async function listChats() {
  const found = await transact("readonly", chats => chats.getAll());
  return found.sort((one, other) => other.isPinned - one.isPinned || other.changedAt - one.changedAt);
}

/** The ids of the chats with a message that contains a text, in any case. */
export async function searchChats(text) {
  const found = new Set();
  const wanted = text.toLowerCase();
  await transact("readonly", (_, messages) => {
    messages.openCursor().onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) return;
      if (cursor.value.text.toLowerCase().includes(wanted)) found.add(cursor.value.chat);
      cursor.continue();
    };
  });
  return found;
}
