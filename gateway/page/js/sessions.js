/** Sessions of requests that have ended, such as those of coding agents, and the turns of one: what each reused, and where its prompt broke. */

import { useState } from "preact/hooks";
import { enumName } from "./admin.js";
import { get } from "./api.js";
import { BarPlot } from "./plot.js";
import { ErrorBox, formatNumber, html, Status, Table, Time, useLoad, usePolling } from "./ui.js";

const PAGE = 50;
const POLLING_S = 5;
const PLOTTED_TURNS = 100;

export function SessionsView({ id }) {
  return id ? html`<${Session} key=${id} id=${id} />` : html`<${SessionList} />`;
}

function SessionList() {
  const [shown, setShown] = useState(PAGE);
  const { data, error, reload } = useLoad(() => get("admin/sessions", { page_size: shown }), [shown]);
  usePolling(reload, POLLING_S);
  const hasMore = data && (data.next_page_token || data.sessions.length > shown); // several replicas send all
  return html`<${Table} caption="Sessions" rows=${data?.sessions.slice(0, shown).map(each => ({ id: each.session_id, ...each }))} error=${error}
      empty="No request has ended yet." hasMore=${hasMore} more=${async () => setShown(shown + PAGE)} columns=${[
        ["Session", row => html`<a href=${`#/sessions/${row.id}`}>${row.name || html`<code>${row.id}</code>`}</a>`],
        ["Last turn", row => html`<${Time} value=${row.end_time} />`],
        ["Project", row => row.project], ["Model", row => row.model],
        ["Turns", row => formatNumber(row.num_turns), true],
        ["Broken prefixes", row => formatNumber(row.num_divergences), true],
        ["Prompt tokens", row => formatNumber(row.prompt_tokens), true],
        ["Reused", row => formatShare(row), true],
        ["Generated", row => formatNumber(row.completion_tokens), true],
      ]} />
    ${data && html`<${RecordNote} since=${data.record_time} />`}`;
}

function Session({ id }) {
  const { data, error, reload } = useLoad(() => get("admin/sessions", { session_id: id }), [id]);
  usePolling(reload, POLLING_S);
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<p class="muted" role="status">Loading…</p>`;
  const [session] = data.sessions;
  const turns = (session?.turns ?? []).map((each, index) => ({ id: each.request_id, number: index + 1, ...each }));
  const plotted = turns.slice(-PLOTTED_TURNS);
  return html`<p><a href="#/sessions">All sessions</a></p>
    <h2>${session?.name || id}</h2>
    ${session && html`<p>${session.project}, ${session.model}: ${formatNumber(session.num_turns)} turns, of whose ${formatNumber(session.prompt_tokens)} prompt tokens ${formatShare(session)} were reused.</p>
    <div class="panels plots">
      <figure><figcaption>Reused part of the prompt by turn, %</figcaption>
        <${BarPlot} title="Reused part of the prompt by turn, %" bars=${plotted.map(each => [each.number, Math.round(share(each.usage) * 100)])} /></figure>
      <figure><figcaption>Generated tokens a second by turn</figcaption>
        <${BarPlot} title="Generated tokens a second by turn" bars=${plotted.map(each => [each.number, Math.round(each.timings.tokens_per_second)])} /></figure>
    </div>`}
    <${Table} caption="Turns" rows=${turns} empty="No turn of this session is recorded." columns=${[
      ["Turn", row => row.number, true],
      ["Ended", row => html`<${Time} value=${row.end_time} />`],
      ["Prompt tokens", row => formatNumber(row.usage.prompt_tokens), true],
      ["Reused", row => formatShare(row.usage), true],
      ["Broken in", row => row.usage.divergence ? (row.usage.divergence.field ? html`<code>${row.usage.divergence.field}</code>` : "not known") : ""],
      ["At token", row => row.usage.divergence ? formatNumber(row.usage.divergence.token_index) : "", true],
      ["Lost tokens", row => row.usage.divergence ? formatNumber(row.usage.divergence.lost_tokens) : "", true],
      ["First token", row => row.timings.first_token ? `${parseFloat(row.timings.first_token).toFixed(2)} s` : "–", true],
      ["Generated", row => formatNumber(row.usage.completion_tokens), true],
      ["Tokens/s", row => row.timings.tokens_per_second ? row.timings.tokens_per_second.toFixed(1) : "–", true],
      ["End", row => html`<${Status} value=${enumName(row.error_reason || row.finish_reason, "FINISH_REASON_")} />`],
      ["Request", row => html`<code>${row.id}</code>${row.label && html` <small>${row.label}</small>`}`],
      ...(turns.some(each => each.replica) ? [["Replica", row => html`<code>${row.replica}</code>`]] : []),
    ]} />
    <${RecordNote} since=${data.record_time} />`;
}

const RecordNote = ({ since }) => html`<p class="muted">Requests that have ended since the service started, <${Time} value=${since} />:
    at most 4,096 of the last day, kept in memory and gone with the service. Prompts and answers are not kept.</p>`;

const share = ({ cached_tokens: cached, prompt_tokens: all }) => Number(all) ? Number(cached) / Number(all) : 0;
const formatShare = usage => `${(100 * share(usage)).toFixed(1)} %`;
