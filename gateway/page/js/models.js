/** Models: state, memory, progress; load and unload. */

import { enumName, listAll } from "./admin.js";
import { post } from "./api.js";
import { Action, formatBytes, formatNumber, html, Meter, Status, Table, useLoad, usePolling } from "./ui.js";

const state = model => enumName(model.state, "STATE_");

export function ModelsView() {
  const { data, error, reload } = useLoad(() => listAll("admin/models", "models"), []);
  const isChanging = data?.some(model => ["loading", "unloading"].includes(state(model))) ?? false;
  usePolling(reload, isChanging ? 0.5 : 5);
  const load = async name => { await post("admin/models/load", { model: name }); await reload(); };
  const unload = async name => { await post("admin/models/unload", { model: name, wait: false }); await reload(); };
  return html`<${Table} caption="Models" rows=${data?.map(model => ({ id: model.name, ...model }))} error=${error} columns=${[
    ["Model", row => html`<strong>${row.name}</strong>${row.aliases.length > 0 && html`<br /><small>also ${row.aliases.join(", ")}</small>`}${row.parent && html`<br /><small>adapter of ${row.parent}</small>`}`],
    ["State", row => html`<${Status} value=${state(row)} />${row.problem && html`<p class="error">${row.problem}</p>`}<${Progress} progress=${row.load_progress} />`],
    ["Parameters", row => formatNumber(row.num_parameters), true],
    ["File", row => formatBytes(Number(row.size_bytes)), true],
    ["Memory", row => Number(row.memory_bytes) ? formatBytes(Number(row.memory_bytes)) : "–", true],
    ["Slots and context", row => row.resolved_limits?.slots ? `${row.resolved_limits.slots} × ${formatNumber(row.resolved_limits.context_tokens)}` : "–", true],
    ["Reads", row => row.input_modalities.map(each => enumName(each, "MODALITY_")).join(", ")],
    ["Uses", row => row.num_uses, true],
    ["", row => row.parent ? null : ["ready", "loading"].includes(state(row))
      ? html`<${Action} class="danger" confirm=${`Unload ${row.name} when its requests have ended?`} run=${() => unload(row.name)}>Unload<//>`
      : html`<${Action} disabled=${state(row) === "unloading"} run=${() => load(row.name)}>Load<//>`],
  ]} />`;
}

function Progress({ progress }) {
  if (!progress) return null;
  const phase = enumName(progress.phase, "PHASE_").replace("_", " ");
  return html`<${Meter} label="Progress" value=${progress.fraction} max=${1} text=${`${phase}, ${Math.round(progress.fraction * 100)} %`} />`;
}
