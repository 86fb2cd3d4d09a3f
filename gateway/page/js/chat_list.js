/** The chats that this browser keeps: search, open, rename, pin, delete, store on the server. */

import { useEffect, useRef, useState } from "preact/hooks";
import * as state from "./chat_state.js";
import { listChats, searchChats, watchChats } from "./chat_store.js";
import { storeChat } from "./conversations.js";
import { Action, ErrorBox, Field, focus, hasRoom, html, MESSAGE_BOX, notify, onEscape, useLoad } from "./ui.js";

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
  const change = async (chat, changes) => { await state.changeChat(chat, changes); await reload(); };
  const rename = async (event, chat) => {
    event.preventDefault();
    setRenamed(null);
    await change(chat, { title: new FormData(event.currentTarget).get("title") });
  };
  return html`<details class="folded chats" open=${hasRoom()} ref=${panel}>
    <summary>Chats</summary>
    <div class="fields">
      <div class="row"><button type="button" onClick=${startChat}>New chat</button><${Action} run=${store}>Store as a conversation<//></div>
      <${Field} label="Search" type="search" value=${search} onInput=${event => setSearch(event.target.value)} />
      <${ErrorBox} error=${error} />
      <ul aria-label="Chats">${data?.map(chat => html`<li key=${chat.id}>
        ${renamed === chat.id
          ? html`<form onSubmit=${event => rename(event, chat)} onKeyDown=${onEscape(() => setRenamed(null))}><input name="title" aria-label="Name" defaultValue=${chat.title} required maxlength="200" ref=${focus} /></form>`
          : html`<a href=${`#/chat/${chat.id}`} aria-current=${chat.id === opened.id ? "true" : undefined} onClick=${() => state.openChat(chat.id)}>${chat.isPinned ? "★ " : ""}${chat.title || "Untitled"}</a>`}
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

/** Store the messages that are shown on the server, under the chat's name. */
async function store() {
  const messages = state.messages.value;
  if (!messages.length) throw new Error("The chat is empty.");
  const id = await storeChat(messages, state.chat.value.title || "Chat");
  notify(`Stored as ${id}.`);
  location.hash = `#/conversations/${id}`;
}
