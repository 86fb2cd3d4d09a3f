/** Markdown of models as HTML that is safe to show: no scripts, forms, styles or remote pictures. */

import DOMPurify from "dompurify";
import { Marked } from "marked";
import { useMemo } from "preact/hooks";
import { Action, copyText, html } from "./ui.js";

const escape = text => text.replace(/[&<>"]/g, each => `&#${each.charCodeAt(0)};`);
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escape(text), // the tags that a model writes are text
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
  },
});
const ALLOWED = {
  USE_PROFILES: { html: true },
  FORBID_TAGS: ["img", "picture", "video", "audio", "source", "style", "form", "button", "textarea", "select", "dialog"],
  FORBID_ATTR: ["style", "class", "id", "name"],
  RETURN_TRUSTED_TYPE: true,
};

DOMPurify.addHook("afterSanitizeAttributes", node => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
  if (node.tagName === "PRE" || node.tagName === "TABLE") node.setAttribute("tabindex", "0"); // they scroll
});

/** Show a text as Markdown. While it grows, only its last block is made again. */
export function Markdown({ text }) {
  const blocks = useMemo(() => marked.lexer(text), [text]);
  const links = Object.keys(blocks.links).length; // a link's address may come after it
  return html`<div class="markdown">${blocks.map((block, at) => html`<${Block} key=${`${at} ${links}`} block=${block} />`)}</div>`;
}

function Block({ block }) {
  return block.type === "code" ? html`<${Code} block=${block} />` : html`<${Sanitized} block=${block} />`;
}

function Code({ block: { text, lang } }) {
  return html`<div class="block code-block"><div class="row"><span class="muted">${lang}</span>
      <${Action} class="plain" run=${() => copyText(text)}>Copy the code<//></div>
    <pre tabindex="0" aria-label=${`Code ${lang ?? ""}`}><code>${text}</code></pre></div>`;
}

function Sanitized({ block }) {
  const content = useMemo(() => DOMPurify.sanitize(marked.parser([block]), ALLOWED), [block.raw]);
  return html`<div class="block" dangerouslySetInnerHTML=${{ __html: content }} />`;
}
