/** Small plots as SVG, with their figures as text for screen readers. */

import { formatNumber, html } from "./ui.js";

const WIDTH = 640;
const HEIGHT = 180;
const LEFT = 60;
const BOTTOM = 28;
const TOP = 12;

/** Bars by label. `bars` are `[label, value]`. */
export function BarPlot({ title, bars }) {
  const max = Math.max(1, ...bars.map(([, value]) => value));
  const step = (WIDTH - LEFT - 8) / Math.max(1, bars.length);
  const every = Math.ceil(bars.length / 8);
  return html`<${Frame} title=${title} max=${max} summary=${bars.map(([label, value]) => `${label}: ${formatNumber(value)}`).join(", ")}>
    ${bars.map(([label, value], index) => {
      const height = value / max * (HEIGHT - TOP - BOTTOM);
      const x = LEFT + index * step;
      return html`<g key=${label}><rect class="bar" x=${x + step * 0.12} width=${step * 0.76} y=${HEIGHT - BOTTOM - height} height=${height} rx="2"><title>${label}: ${formatNumber(value)}</title></rect>
        ${index % every === 0 && html`<text x=${x + step / 2} y=${HEIGHT - 7} text-anchor="middle">${label}</text>`}</g>`;
    })}<//>`;
}

/** A line over the last samples. */
export function LinePlot({ title, values, capacity }) {
  const max = Math.max(1, ...values);
  const x = index => LEFT + (index + capacity - values.length) * (WIDTH - LEFT - 8) / Math.max(1, capacity - 1);
  const y = value => HEIGHT - BOTTOM - value / max * (HEIGHT - TOP - BOTTOM);
  const points = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return html`<${Frame} title=${title} max=${max} summary=${`now ${formatNumber(Math.round(values.at(-1) ?? 0))}, highest ${formatNumber(Math.round(max))}`}>
    <polyline class="line" points=${points} /><//>`;
}

function Frame({ title, max, summary, children }) {
  const lines = [0, 0.5, 1].map(part => [part, HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)]);
  return html`<svg class="plot" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${`${title}: ${summary}`}>
    ${lines.map(([part, y]) => html`<line class="axis" x1=${LEFT} x2=${WIDTH - 8} y1=${y} y2=${y} />
      <text x=${LEFT - 6} y=${y + 4} text-anchor="end">${compact(max * part)}</text>`)}
    ${children}</svg>`;
}

const compact = value => Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
