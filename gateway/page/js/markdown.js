/** Markdown of models as HTML that is safe to show: no scripts, forms, styles or remote pictures. */

import { signal } from "@preact/signals";
import DOMPurify from "dompurify";
import { Marked } from "marked";
import { useMemo } from "preact/hooks";
import { Action, copyText, html } from "./ui.js";

/** A library that is fetched when the first text needs it; null until then. */
function lazy(path) {
  const library = signal(null);
  let fetching = null;
  return () => {
    fetching ??= import(path).then(module => { library.value = module.default; }, () => {}); // the text stays as it is
    return library.value;
  };
}

const highlighterLibrary = lazy("../vendor/highlight.min.mjs");
const mathLibrary = lazy("../vendor/temml.mjs");
const escape = text => text.replace(/[&<>"]/g, each => `&#${each.charCodeAt(0)};`);
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escape(text), // the tags that a model writes are text
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
  },
  extensions: [
    mathExtension("displayed", "block", /^ {0,3}(?:\$\$([^$]+?)\$\$|\\\[([^]+?)\\\])\s*?(?:\n|$)/, /\n(?:[ \t]*\n| {0,3}(?:\$\$|\\\[))/),
    mathExtension("formula", "inline", /^(?:\$(?![\s$])((?:[^$\\\n]|\\.)+?)(?<!\s)\$(?!\d)|\\\(([^\n]+?)\\\))/, /\$|\\\(/),
  ],
});
const ALLOWED = {
  USE_PROFILES: { html: true, mathMl: true },
  FORBID_TAGS: ["img", "picture", "video", "audio", "source", "style", "form", "button", "textarea", "select", "dialog"],
  FORBID_ATTR: ["style", "class", "id", "name"],
  RETURN_TRUSTED_TYPE: true,
};
const GROWING_LIMIT = 5000; // characters of code that are highlighted while it grows
const CODE_LIMIT = 100_000; // and once its block has ended; this takes half a second
const ALLOWED_IN_CODE = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_TRUSTED_TYPE: true };

DOMPurify.addHook("afterSanitizeAttributes", node => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
  if (node.tagName === "PRE" || node.tagName === "TABLE") node.setAttribute("tabindex", "0"); // they scroll
});

/**
 * LaTeX between dollars, as in GitHub's Markdown, or brackets with backslashes. Shown as MathML.
 * `begin` finds where one may begin in a paragraph, or the end of the paragraph.
 */
function mathExtension(name, level, pattern, begin) {
  return {
    name,
    level,
    start: text => { const at = text.search(begin); return at < 0 ? undefined : at; },
    tokenizer: text => {
      const match = pattern.exec(text);
      return match ? { type: name, raw: match[0], text: (match[1] ?? match[2]).trim() } : undefined;
    },
    renderer: ({ text, raw }) => {
      const math = mathLibrary();
      if (!math) return escape(raw);
      const made = math.renderToString(text, { displayMode: level === "block", throwOnError: false, trust: false, maxExpand: 100 });
      return made.replace(/ style="[^"]*"/g, ""); // the policy refuses it; quotes in texts are escaped
    },
  };
}

/** Show a text as Markdown. While it grows, only its last block is made again. */
export function Markdown({ text }) {
  return useMemo(() => {
    const blocks = marked.lexer(text);
    const links = Object.keys(blocks.links).length; // a link's address may come after it
    return html`<div class="markdown">${blocks.map((block, at) => block.type === "code"
      ? html`<${Code} key=${at} block=${block} />`
      : html`<${Block} key=${`${at} ${links}`} block=${block} />`)}</div>`;
  }, [text]);
}

function Block({ block }) {
  const hasMath = useMemo(() => containsMath(block), [block.raw]);
  const math = hasMath ? mathLibrary() : null;
  const content = useMemo(() => DOMPurify.sanitize(marked.parser([block]), ALLOWED), [block.raw, math]);
  return html`<div class="block" dangerouslySetInnerHTML=${{ __html: content }} />`;
}

function containsMath(block) {
  let isFound = false;
  marked.walkTokens([block], ({ type }) => { isFound ||= type === "displayed" || type === "formula"; });
  return isFound;
}

function Code({ block: { text, lang, raw } }) {
  const hasEnded = /\n {0,3}(`{3,}|~{3,})\s*$/.test(raw);
  const isHighlighted = lang && text.length < (hasEnded ? CODE_LIMIT : GROWING_LIMIT);
  const highlighter = isHighlighted ? highlighterLibrary() : null;
  const content = useMemo(() => {
    if (!highlighter?.getLanguage(lang)) return null;
    return DOMPurify.sanitize(highlighter.highlight(text, { language: lang, ignoreIllegals: true }).value, ALLOWED_IN_CODE);
  }, [text, lang, highlighter]);
  return html`<div class="block code-block"><div class="row"><span class="muted">${lang}</span>
      <${Action} class="plain" run=${() => copyText(text)}>Copy the code<//></div>
    <pre tabindex="0" aria-label=${`Code ${lang ?? ""}`}>${content
      ? html`<code dangerouslySetInnerHTML=${{ __html: content }} />`
      : html`<code>${text}</code>`}</pre></div>`;
}
