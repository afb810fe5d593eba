// Layers x experts: what is in memory, and how much each expert has been used lately. Colours come from the style sheet, as the
// computed colours of the canvas, so that the themes live in one place.
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { heldExperts, type LayerState } from '../engine_state';

type Colour = [number, number, number];

function colourOf(text: string): Colour {
  const numbers = text.match(/[\d.]+/g)?.map(Number) ?? [];
  return [numbers[0] ?? 0, numbers[1] ?? 0, numbers[2] ?? 0];
}

function mixed(a: Colour, b: Colour, share: number): Colour {
  return [0, 1, 2].map((i) => a[i]! + (b[i]! - a[i]!) * share) as Colour;
}

const kStates = ['on the SSD only', 'being loaded', 'in memory'];

export function HeatMap({ layers }: { layers: LayerState[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<{ layer: number; expert: number } | null>(null); // under the pointer
  const nExperts = Math.max(1, ...layers.map((l) => l.held.length));

  useLayoutEffect(() => {
    const element = canvas.current!;
    // One pixel per expert: the style sheet enlarges it without smoothing.
    element.width = nExperts;
    element.height = Math.max(1, layers.length);
    const style = getComputedStyle(element);
    const absent = colourOf(style.backgroundColor);
    const wanted = colourOf(style.borderBottomColor);
    const held = colourOf(style.color);
    const used = colourOf(style.outlineColor);
    const loading = colourOf(style.borderTopColor);
    const context = element.getContext('2d')!;
    const image = context.createImageData(element.width, element.height);
    layers.forEach((layer, row) => {
      layer.held.forEach((state, expert) => {
        // The root shows differences among the many that are used a little.
        const share = Math.sqrt(layer.used[expert] ?? 0);
        const colour = state === 2 ? mixed(held, used, share) : state === 1 ? loading : mixed(absent, wanted, share);
        image.data.set([...colour, 255], 4 * (row * nExperts + expert));
      });
    });
    context.putImageData(image, 0, 0);
  });

  const cellAt = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const expert = Math.floor(((event.clientX - box.left) / box.width) * nExperts);
    const layer = Math.floor(((event.clientY - box.top) / box.height) * layers.length);
    setAt(layers[layer] && expert >= 0 && expert < nExperts ? { layer, expert } : null);
  };
  const pointed = at && layers[at.layer];
  const { held, all } = heldExperts(layers);
  const rowHeight = Math.max(3, Math.min(14, Math.floor(360 / Math.max(1, layers.length))));
  return (
    <figure class="heat-map">
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${layers.length} layers of up to ${nExperts} experts; ${held} of ${all} are in memory`}
        style={{ height: `${rowHeight * Math.max(1, layers.length)}px` }}
        onPointerMove={cellAt}
        onPointerLeave={() => setAt(null)}
      />
      <figcaption>
        {at && pointed && at.expert < pointed.held.length ? (
          <>
            Layer {pointed.layer}, expert {at.expert}: {kStates[pointed.held[at.expert]!]}, in {Math.round(100 * (pointed.used[at.expert] ?? 0))} % of
            the last steps
          </>
        ) : (
          <span class="legend">
            <span>
              <i class="absent" />
              <i class="wanted" /> on the SSD
            </span>
            <span>
              <i class="held" />
              <i class="used" /> in memory
            </span>
            <span>
              <i class="loading" /> being loaded
            </span>
            <span>stronger: used more lately</span>
          </span>
        )}
      </figcaption>
    </figure>
  );
}
