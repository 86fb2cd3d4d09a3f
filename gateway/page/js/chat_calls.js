/** Calls of tools in an answer: those that the server has made, and those that the user answers or approves. */

import * as chat from "./chat_state.js";
import { isMade } from "./chat_items.js";
import { html } from "./ui.js";

/** Calls that the server makes, with what they returned. */
export function MadeCalls({ calls, isRunning }) {
  return html`<div class="calls">${calls.map(call => html`<${Call} key=${call.id} call=${call}>
    ${call.error ? html`<p class="error text">${call.error}</p>`
      : call.output !== null ? html`<pre tabindex="0" aria-label=${`Output of ${call.name}`}>${pretty(call.output)}</pre>`
        : html`<p class="muted">${isRunning ? "It runs." : "It was interrupted."}</p>`}<//>`)}</div>`;
}

/** Calls that the user makes, and enters what each one returns, or approves. The server makes what is approved. */
export function AskedCalls({ message, isLast }) {
  const calls = message.calls.filter(call => !isMade(call));
  const own = calls.filter(call => !call.server);
  const proceed = event => {
    event.preventDefault();
    chat.generate();
  };
  return html`<form class="calls" onSubmit=${proceed}>
    ${calls.map(call => html`<${Call} key=${call.id} call=${call}>
      ${call.server ? html`<${Approval} message=${message} call=${call} isLast=${isLast} />`
        : isLast ? html`<label>Output of the tool
            <textarea rows="2" required value=${call.output} onInput=${event => chat.setOutput(message, call.id, event.target.value)} /></label>`
          : html`<p class="text">${call.output}</p>`}<//>`)}
    ${isLast && own.length > 0 && html`<button class="primary" disabled=${calls.some(call => call.approval === "asked")}>Send the ${own.length > 1 ? "outputs" : "output"}</button>`}
  </form>`;
}

function Call({ call, children }) {
  return html`<fieldset><legend>Tool call: <code>${call.name}</code>${call.server && html` of <code>${call.server}</code>`}</legend>
    <pre tabindex="0" aria-label=${`Arguments of ${call.name}`}>${pretty(call.arguments)}</pre>${children}</fieldset>`;
}

/** Asks whether the server may make a call. What is not answered before the next message is refused. */
function Approval({ message, call, isLast }) {
  if (call.approval !== "asked" || !isLast) return html`<p class="muted">${call.approval === "approved" ? "Approved." : "Refused."}</p>`;
  const decide = (...decision) => () => chat.decide(message, call, ...decision);
  return html`<div class="row"><button type="button" class="primary" onClick=${decide("approved")}>Approve</button>
    <button type="button" onClick=${decide("approved", true)}>Always in this chat</button>
    <button type="button" onClick=${decide("refused")}>Refuse</button></div>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it still arrives, or is no JSON
  }
}
