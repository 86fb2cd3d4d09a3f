/** A list of messages that opens at its end, stays there while it grows, and shows older ones on demand. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { Action, html } from "./ui.js";

const END_PX = 40; // so near to its end it follows what comes
const TOP_PX = 200; // so near to its top it shows older ones

/**
 * Show `children`, of which `first` is the key of the oldest. `loadOlder` adds older ones above;
 * what is on the screen stays there. `more` are the attributes of the element.
 */
export function Transcript({ label, first, hasOlder, loadOlder, children, ...more }) {
  const box = useRef();
  const isAtEnd = useRef(true);
  const before = useRef({});
  const isLoading = useRef(false);
  useLayoutEffect(() => {
    const { scrollHeight } = box.current;
    if (isAtEnd.current) box.current.scrollTop = scrollHeight;
    else if (first !== before.current.first) box.current.scrollTop += scrollHeight - before.current.scrollHeight;
    before.current = { first, scrollHeight };
  });
  const onScroll = async () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < END_PX;
    if (!hasOlder || scrollTop > TOP_PX || isLoading.current) return;
    isLoading.current = true;
    try {
      await loadOlder();
    } catch {
      // The button says why.
    }
    isLoading.current = false;
  };
  return html`<div class="log" ref=${box} role="log" aria-label=${label} tabindex="0" onScroll=${onScroll} ...${more}>
    ${hasOlder && html`<p class="older"><${Action} class="plain" run=${loadOlder}>Show older<//></p>`}
    ${children}
  </div>`;
}
