/** Markdown of models as HTML that is safe to show: no scripts, forms, styles or remote pictures. */

import { signal } from "@preact/signals";
import DOMPurify from "dompurify";
import { Marked } from "marked";
import { useMemo, useRef } from "preact/hooks";
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
const WHOLE_LIST_LIMIT = 4000; // characters of a list that is made as a whole
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

/** Show a text as Markdown. While it grows, only its last block, or the last item of a list, is made again. */
export function Markdown({ text }) {
  return useMemo(() => {
    const tokens = marked.lexer(text);
    const links = Object.keys(tokens.links).length; // a link's address may come after it
    return html`<div class="markdown"><${Blocks} key=${links} blocks=${tokens.map(token => [token])} /></div>`;
  }, [text]);
}

/** Blocks, each of one token or, in an item of a list, of several that belong together. */
function Blocks({ blocks }) {
  return blocks.map((block, at) => {
    const [token] = block;
    if (token.type === "code") return html`<${Code} key=${at} block=${token} />`;
    if (token.type === "list" && isSplit(token)) return html`<${List} key=${at} list=${token} />`;
    return html`<${Block} key=${at} tokens=${block} raw=${block.map(each => each.raw).join("")} />`;
  });
}

function Block({ tokens, raw }) {
  const hasMath = useMemo(() => containsMath(tokens), [raw]);
  const math = hasMath ? mathLibrary() : null;
  const content = useMemo(() => DOMPurify.sanitize(marked.parser(tokens), ALLOWED), [raw, math, tokens[0].type]);
  return html`<div class="block" dangerouslySetInnerHTML=${{ __html: content }} />`;
}

/** Whether items of a list are blocks: to make each costs more than to make a short list again, except for code, which has a button. */
const isSplit = ({ raw, items }) => raw.length > WHOLE_LIST_LIMIT || items.some(item => item.tokens.some(({ type }) => type === "code"));

/** A list by items. Those that are as before are not looked at again: there may be thousands. */
function List({ list: { ordered, start, items } }) {
  const before = useRef([]);
  before.current = items.map((item, at) => {
    const made = before.current[at];
    if (made && made.raw === item.raw && made.loose === item.loose) return made;
    return { raw: item.raw, loose: item.loose, shown: html`<li key=${at}><${Blocks} blocks=${groupTokens(item.tokens)} /></li>` };
  });
  const shown = before.current.map(each => each.shown);
  return ordered ? html`<ol class="block" start=${start}>${shown}</ol>` : html`<ul class="block">${shown}</ul>`;
}

/** The tokens of an item as blocks: a code block or a list is one of its own. */
function groupTokens(tokens) {
  const blocks = [];
  let group = null;
  for (const token of tokens) {
    const isAlone = token.type === "code" || (token.type === "list" && isSplit(token));
    if (isAlone || !group) blocks.push(group = []);
    group.push(token);
    if (isAlone) group = null;
  }
  return blocks;
}

function containsMath(tokens) {
  let isFound = false;
  marked.walkTokens(tokens, ({ type }) => { isFound ||= type === "displayed" || type === "formula"; });
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
