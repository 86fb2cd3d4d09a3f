/** The frame of the page: key, navigation, and the view that the URL's fragment names. */

import { effect, signal } from "@preact/signals";
import { options, render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { AdaptersView } from "./adapters.js";
import { apiKey, keyProblem, setKey } from "./api.js";
import { AssistantsView } from "./assistants.js";
import { AuditView } from "./audit.js";
import { BatchesView } from "./batches.js";
import { readItem, writeItem } from "./browser_storage.js";
import { ChatView } from "./chat.js";
import { ConversationsView } from "./conversations.js";
import { FilesView } from "./files.js";
import { KeysView } from "./keys.js";
import { LimitsView } from "./limits.js";
import { LoadView } from "./load.js";
import { ModelsView } from "./models.js";
import { ResponsesView } from "./responses.js";
import { SessionsView } from "./sessions.js";
import { ThreadsView } from "./threads.js";
import { Field, html, IS_TOUCH, MESSAGE_BOX, Notice } from "./ui.js";
import { UsageView } from "./usage.js";
import { VectorStoresView } from "./vector_stores.js";

/** The views by group: `path: [title, component]`. */
const GROUPS = {
  Use: {
    chat: ["Chat", ChatView],
    conversations: ["Conversations", ConversationsView],
    responses: ["Responses", ResponsesView],
    assistants: ["Assistants", AssistantsView],
    threads: ["Threads and runs", ThreadsView],
  },
  Data: {
    files: ["Files", FilesView],
    "vector-stores": ["Vector stores", VectorStoresView],
    batches: ["Batches", BatchesView],
  },
  Operate: {
    models: ["Models", ModelsView],
    adapters: ["Adapters", AdaptersView],
    load: ["Load", LoadView],
    sessions: ["Sessions", SessionsView],
    usage: ["Usage", UsageView],
    keys: ["Keys and projects", KeysView],
    limits: ["Limits", LimitsView],
    audit: ["Audit log", AuditView],
  },
};
const VIEWS = Object.assign({}, ...Object.values(GROUPS));

function parseFragment(url) {
  const [view, ...parts] = new URL(url).hash.replace(/^#\/?/, "").split("/").map(decode);
  return Object.hasOwn(VIEWS, view) ? { view, id: parts.join("/") } : { view: "chat", id: "" };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const route = signal(parseFragment(location.href));
const isMenuOpen = signal(false);
addEventListener("hashchange", event => { // the chat may have replaced the address meanwhile
  route.value = parseFragment(event.newURL);
  isMenuOpen.value = false;
});

const SCHEME_ITEM = "corral.scheme";
const SCHEMES = ["system", "light", "dark"];
const scheme = signal(readItem("localStorage", SCHEME_ITEM) ?? "system");
effect(() => {
  document.documentElement.dataset.scheme = scheme.value;
  writeItem("localStorage", SCHEME_ITEM, scheme.value);
});

function Navigation() {
  return html`<nav id="menu" aria-label="Views" class=${isMenuOpen.value ? "open" : ""}>
    ${Object.entries(GROUPS).map(([group, views]) => html`<h2>${group}</h2><ul>
      ${Object.entries(views).map(([path, [title]]) => html`<li><a href=${`#/${path}`}
        aria-current=${route.value.view === path ? "page" : undefined}>${title}</a></li>`)}</ul>`)}
    <h2>More</h2>
    <ul><li><a href="../docs">API reference</a></li>
      <li><button class="link" onClick=${() => { keyProblem.value = "Enter another key, or none."; }}>${apiKey.value ? "Change the key" : "Enter a key"}</button></li>
      <li><label>Colours <select value=${scheme.value} onChange=${event => { scheme.value = event.target.value; }}>
        ${SCHEMES.map(each => html`<option>${each}</option>`)}</select></label></li></ul>
  </nav>`;
}

/** Asks for the API key, once a request was refused without one. */
function KeyDialog() {
  const dialog = useRef();
  const problem = keyProblem.value;
  useEffect(() => {
    if (problem && !dialog.current.open) dialog.current.showModal();
    if (!problem) dialog.current.close();
  }, [problem]);
  const enter = event => {
    event.preventDefault();
    try {
      setKey(new FormData(event.currentTarget).get("key").trim());
      event.currentTarget.reset();
    } catch (error) {
      keyProblem.value = error.message;
    }
  };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onClose=${() => { keyProblem.value = null; }}>
    <form class="fields" onSubmit=${enter}>
      <h2 id="key-title">API key</h2>
      <p>${problem}</p>
      <${Field} label="Key" name="key" type="password" autocomplete="off" hint="Kept in this tab until it is closed." />
      <div class="row"><button class="primary">Use this key</button>
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button></div>
    </form>
  </dialog>`;
}

function App() {
  const { view, id } = route.value;
  const [title, View] = VIEWS[view];
  const heading = useRef();
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${title} – Corral`;
    const box = IS_TOUCH ? null : document.getElementById(MESSAGE_BOX);
    if (box || !isFirst.current) (box ?? heading.current).focus();
    isFirst.current = false;
  }, [title]);
  return html`
    <a class="skip" href="#main" onClick=${event => { event.preventDefault(); heading.current.focus(); }}>Skip to the content</a>
    <header>
      <a class="brand" href="#/chat"><img src="icon.svg" alt="" width="28" height="28" /> Corral</a>
      <button class="menu" aria-expanded=${isMenuOpen.value} aria-controls="menu"
        onClick=${() => { isMenuOpen.value = !isMenuOpen.value; }}>Menu</button>
      <${Navigation} />
    </header>
    <main id="main" class=${view}><h1 ref=${heading} tabindex="-1">${title}</h1>
      <${View} key=${`${view} ${apiKey.value}`} id=${id} /></main>
    <${Notice} /><${KeyDialog} />`;
}

options.debounceRendering = render => requestAnimationFrame(render); // events of streams come faster than frames
render(html`<${App} />`, document.getElementById("app"));

/** Keep the page's files for times without the server, where browsers allow it: on loopback and over HTTPS. */
async function keepPage() {
  const worker = window.trustedTypes?.createPolicy("corral", { createScriptURL: () => "worker.js" }).createScriptURL("") ?? "worker.js";
  await navigator.serviceWorker.register(worker);
  const { active } = await navigator.serviceWorker.ready;
  active.postMessage([document.baseURI.split("#")[0], ...performance.getEntriesByType("resource").map(({ name }) => name)]);
}
if (navigator.serviceWorker) keepPage().catch(() => {}); // some browsers forbid it in private windows
