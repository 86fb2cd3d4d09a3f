/** A list of messages that opens at its end, stays there while it grows, and shows older ones on demand. */

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Action, html } from "./ui.js";

const END_PX = 40; // so near to its end it follows what comes
const TOP_PX = 200; // so near to its top it shows older ones

/**
 * Show `children`, of which `first` is the key of the oldest. `loadOlder` adds older ones above;
 * what is on the screen stays there. When it becomes busy, as by a new message, its end is shown.
 */
export function Transcript({ label, first, isBusy = false, hasOlder, loadOlder, children }) {
  const box = useRef();
  const content = useRef();
  const isAtEnd = useRef(true);
  const before = useRef({});
  const isLoading = useRef(false);
  const wasBusy = useRef(isBusy);
  useLayoutEffect(() => {
    const { scrollHeight } = box.current;
    if (isBusy && !wasBusy.current) isAtEnd.current = true;
    wasBusy.current = isBusy;
    if (isAtEnd.current) box.current.scrollTop = scrollHeight;
    else if (first !== before.current.first) box.current.scrollTop += scrollHeight - before.current.scrollHeight;
    before.current = { first, scrollHeight };
  });
  useEffect(() => { // pictures and formulas come later, and the message box grows
    const log = box.current;
    const observer = new ResizeObserver(() => { if (isAtEnd.current) log.scrollTop = log.scrollHeight; });
    observer.observe(log);
    observer.observe(content.current);
    return () => observer.disconnect();
  }, []);
  const onScroll = async ({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
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
  return html`<div class="log" ref=${box} role="log" aria-label=${label} aria-busy=${isBusy} tabindex="0" onScroll=${onScroll}><div ref=${content}>
    ${hasOlder && html`<p class="older"><${Action} class="plain" run=${loadOlder}>Show older<//></p>`}
    ${children}
  </div></div>`;
}
