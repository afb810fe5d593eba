// A small line over time, the newest value at the right. Gaps where there was nothing to measure.

interface Props {
  label: string;
  values: (number | null)[];
  places: number; // how many values fit
  most: number | null; // the top of the scale; null: that of the values
  text: (value: number) => string;
}

const kWidth = 300;
const kHeight = 56;

export function Plot({ label, values, places, most, text }: Props) {
  const known = values.filter((v): v is number => v !== null);
  const largest = Math.max(0, ...known);
  const top = most ?? (largest || 1);
  const last = values.at(-1) ?? null;
  const now = last === null ? '–' : text(last);
  const scale = largest > 0 ? text(top) : '';
  const x = (i: number) => kWidth * (1 - (values.length - 1 - i) / (places - 1));
  const y = (v: number) => kHeight - 2 - (kHeight - 6) * Math.min(1, v / top);
  const lines: string[] = [];
  const areas: string[] = [];
  for (let i = 0; i < values.length; ) {
    if (values[i] === null) {
      ++i;
      continue;
    }
    const from = i;
    const points: string[] = [];
    for (; i < values.length && values[i] !== null; ++i) points.push(`${x(i).toFixed(1)},${y(values[i]!).toFixed(1)}`);
    if (points.length === 1) points.push(`${(x(from) + 1).toFixed(1)},${y(values[from]!).toFixed(1)}`); // a single value is a dot
    lines.push(`M${points.join('L')}`);
    areas.push(`M${x(from).toFixed(1)},${kHeight}L${points.join('L')}L${points.at(-1)!.split(',')[0]},${kHeight}Z`);
  }
  return (
    <figure class="plot">
      <figcaption>
        {label} <output>{now}</output>
      </figcaption>
      <svg viewBox={`0 0 ${kWidth} ${kHeight}`} preserveAspectRatio="none" role="img" aria-label={`${label}: ${now}${scale ? `; scale up to ${scale}` : ''}`}>
        <path class="area" d={areas.join('')} />
        <path class="line" d={lines.join('')} />
      </svg>
      {scale && <span class="top">{scale}</span>}
    </figure>
  );
}
