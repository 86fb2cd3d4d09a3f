/** The chats that this browser keeps: search, open, rename, pin, delete, store on the server. */

import { useEffect, useRef, useState } from "preact/hooks";
import { saveFile } from "./api.js";
import { fromItems, toItems } from "./chat_items.js";
import * as state from "./chat_state.js";
import { listChats, searchChats, watchChats } from "./chat_store.js";
import { storeChat } from "./conversations.js";
import { Action, ErrorBox, Field, focus, hasRoom, html, MESSAGE_BOX, notify, onEscape, readArray, SIDE, useLoad } from "./ui.js";

const SEARCH = "k"; // with Control or Command, as in llama-server's page
const NEW_CHAT = "o"; // and with Shift

export function ChatList() {
  const [search, setSearch] = useState("");
  const [renamed, setRenamed] = useState(null);
  const opened = state.chat.value;
  const panel = useRef();
  const { data, error, reload } = useLoad(async () => {
    const [chats, found] = await Promise.all([listChats(), search ? searchChats(search) : null]);
    const isFound = chat => chat.title.toLowerCase().includes(search.toLowerCase()) || found.has(chat.id);
    return search ? chats.filter(isFound) : chats;
  }, [search, opened.id, opened.changedAt]);
  useEffect(() => watchChats(reload), [reload]);
  useEffect(() => { panel.current.open = hasRoom(); }, [opened.id]); // a chat was chosen
  useEffect(() => {
    const onKey = event => {
      const key = event.key.toLowerCase();
      if (!(event.ctrlKey || event.metaKey) || key !== (event.shiftKey ? NEW_CHAT : SEARCH)) return;
      event.preventDefault();
      if (key === NEW_CHAT) startChat();
      else {
        panel.current.open = true;
        panel.current.querySelector("input[type=search]").focus();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const change = async (chat, changes) => { await state.changeChat(chat, changes); await reload(); };
  const rename = async (event, chat) => {
    event.preventDefault();
    setRenamed(null);
    await change(chat, { title: new FormData(event.currentTarget).get("title") });
  };
  return html`<details class="folded chats" name=${hasRoom() ? undefined : SIDE} open=${hasRoom()} ref=${panel}>
    <summary>Chats</summary>
    <div class="fields">
      <div class="row"><button type="button" aria-keyshortcuts="Control+Shift+O" onClick=${startChat}>New chat</button><${OpenFile} /></div>
      <div class="tools"><${Action} class="plain" run=${saveChat}>Save as JSON<//>
        <${Action} class="plain" run=${store}>Store as a conversation<//></div>
      <${Field} label="Search" type="search" aria-keyshortcuts="Control+K" value=${search} onInput=${event => setSearch(event.target.value)} />
      <${ErrorBox} error=${error} />
      <ul aria-label="Chats">${data?.map(chat => html`<li key=${chat.id}>
        ${renamed === chat.id
          ? html`<form onSubmit=${event => rename(event, chat)} onKeyDown=${onEscape(() => setRenamed(null))}><input name="title" aria-label="Name" defaultValue=${chat.title} required maxlength="200" ref=${focus} /></form>`
          : html`<a href=${`#/chat/${chat.id}`} aria-current=${chat.id === opened.id ? "true" : undefined} onClick=${() => state.openChat(chat.id)}>${chat.isPinned ? "★ " : ""}${chat.title || "Untitled"}</a>`}
        ${state.isRunning(chat.id) && html`<span class="cursor" role="img" aria-label="Generating"></span>`}
        <div class="tools">
          <button class="plain" onClick=${() => setRenamed(chat.id)}>Rename</button>
          <${Action} class="plain" run=${() => change(chat, { isPinned: !chat.isPinned })}>${chat.isPinned ? "Unpin" : "Pin"}<//>
          <${Action} class="plain" confirm=${`Delete the chat "${chat.title || "Untitled"}" with all its messages?`} run=${async () => { await state.deleteChat(chat); await reload(); }}>Delete<//>
        </div></li>`)}</ul>
      ${data?.length === 0 && html`<p class="muted" role="status">${search ? "Nothing was found." : "Chats are kept here, in this browser."}</p>`}
    </div>
  </details>`;
}

function startChat() {
  state.startChat();
  location.hash = "#/chat";
  document.getElementById(MESSAGE_BOX).focus();
}

/** The messages that are shown. Throws an Error if there are none. */
function shownMessages() {
  const messages = state.messages.value;
  if (!messages.length) throw new Error("The chat is empty.");
  return messages;
}

async function saveChat() {
  saveFile(`${state.chat.value.title || "Chat"}.json`, JSON.stringify(toItems(shownMessages()), null, 2));
}

/** Begins a chat with the messages of a file, as a chat or a conversation is saved. */
function OpenFile() {
  const picker = useRef();
  const open = async ({ target: { files: [file] } }) => {
    try {
      state.startChat(file.name.replace(/\.json$/, ""), fromItems(await readArray(file, file.name)));
      location.hash = "#/chat";
    } catch (error) {
      notify(error.message, true);
    }
  };
  return html`<input type="file" class="hidden" tabindex="-1" accept=".json" aria-label="File of a chat" ref=${picker} onChange=${open} />
    <button type="button" onClick=${() => picker.current.click()}>Open a file</button>`;
}

/** Store the messages that are shown on the server, under the chat's name. */
async function store() {
  const id = await storeChat(shownMessages(), state.chat.value.title || "Chat");
  notify(`Stored as ${id}.`);
  location.hash = `#/conversations/${id}`;
}
