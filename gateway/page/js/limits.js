/** Limits and budgets of projects, keys and models. */

import { enumName, listAll } from "./admin.js";
import { post, remove } from "./api.js";
import { Action, ErrorBox, Field, Form, formatNumber, html, Status, Table, useLoad } from "./ui.js";

const UNITS = ["UNIT_REQUESTS", "UNIT_TOKENS", "UNIT_CONCURRENT_REQUESTS", "UNIT_COST"];
const PERIODS = ["PERIOD_MINUTE", "PERIOD_DAY", "PERIOD_MONTH"];
const SUBJECTS = ["", "SUBJECT_PROJECT", "SUBJECT_KEY", "SUBJECT_MODEL"];
const words = (value, prefix) => enumName(value, prefix).replaceAll("_", " ");

export function LimitsView() {
  const { data, error, reload } = useLoad(() => listAll("admin/limits", "limits"), []);
  const create = async ({ id, project, key, model, per, unit, amount, period, mode }) => {
    const limit = { id, project, key, model, unit, amount, mode, per: per ? [per] : [] };
    if (unit !== "UNIT_CONCURRENT_REQUESTS") limit.period = period;
    await post("admin/limits", { limit });
    await reload();
  };
  if (error) return html`<${ErrorBox} error=${error} />`;
  return html`<details class="panel"><summary>New limit</summary>
      <${Form} label="New limit" submit="Create" onSubmit=${create}>
        <${Field} label="Id" name="id" required hint="Named in errors; lower-case letters, digits, . _ and -" />
        <div class="grid"><${Field} label="Amount" name="amount" type="number" min="1" required />
          <${Choice} label="Unit" name="unit" values=${UNITS} prefix="UNIT_" /><${Choice} label="Period" name="period" values=${PERIODS} prefix="PERIOD_" />
          <${Field} label="Beyond it"><select name="mode"><option value="MODE_ENFORCE">refuse</option><option value="MODE_SHADOW">only count (shadow)</option></select><//></div>
        <div class="grid"><${Field} label="Project" name="project" placeholder="all" /><${Field} label="Key" name="key" placeholder="all" /><${Field} label="Model" name="model" placeholder="all" />
          <${Choice} label="Amount for each" name="per" values=${SUBJECTS} prefix="SUBJECT_" none="all together" /></div>
        <small>Cost is in billionths of the currency of the price table.</small><//></details>
    <${Table} caption="Limits" rows=${data} empty="There are no limits." columns=${[
      ["Limit", row => html`<strong>${row.id}</strong>`],
      ["Amount", row => formatNumber(row.amount), true],
      ["Of", row => words(row.unit, "UNIT_") + (row.period === "PERIOD_UNSPECIFIED" ? "" : ` a ${words(row.period, "PERIOD_")}`)],
      ["Applies to", row => [row.project && `project ${row.project}`, row.key && `key ${row.key}`, row.model && `model ${row.model}`].filter(Boolean).join(", ") || "all requests"],
      ["For each", row => row.per.map(each => words(each, "SUBJECT_")).join(", ") || "–"],
      ["Mode", row => html`<${Status} value=${words(row.mode, "MODE_")} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Delete the limit ${row.id}?`} run=${async () => { await remove(`admin/limits/${row.id}`); await reload(); }}>Delete<//>`],
    ]} />`;
}

function Choice({ label, name, values, prefix, none }) {
  return html`<${Field} label=${label}><select name=${name}>${values.map(each => html`<option value=${each}>${words(each, prefix) || none}</option>`)}</select><//>`;
}
