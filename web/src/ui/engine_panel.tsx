// The engine, live: asked once a second while this can be seen.
import { useEffect, useState } from 'preact/hooks';
import { getJson } from '../api';
import { type EngineState, engineState, type Sample, sampleBetween, type Tier } from '../engine_state';
import { textOf } from '../session';
import { HeatMap } from './heat_map';
import { IconButton } from './icons';
import { bytesText, durationText, rounded } from './numbers_text';
import { Plot } from './plot';

const kEvery = 1000; // ms
const kSamples = 120;

interface Watched {
  engine: EngineState | null;
  samples: Sample[];
  error: string | null;
}

function useEngine(apiKey: string): Watched {
  const [watched, setWatched] = useState<Watched>({ engine: null, samples: [], error: null });
  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    const look = async () => {
      if (!document.hidden) {
        try {
          const now = engineState(await getJson('v1/engine', apiKey, controller.signal));
          setWatched(({ engine: before, samples }) => {
            const sample = before && sampleBetween(before, now);
            const restarted = before !== null && now.uptime_s < before.uptime_s;
            return { engine: now, samples: restarted ? [] : sample ? [...samples, sample].slice(-kSamples) : samples, error: null };
          });
        } catch (error) {
          if (controller.signal.aborted) return;
          setWatched((w) => ({ ...w, error: textOf(error) }));
        }
      }
      if (!controller.signal.aborted) timer = window.setTimeout(() => void look(), kEvery);
    };
    void look();
    return () => {
      controller.abort();
      window.clearTimeout(timer);
    };
  }, [apiKey]);
  return watched;
}

export function EnginePanel({ apiKey, onClose }: { apiKey: string; onClose: () => void }) {
  const { engine, samples, error } = useEngine(apiKey);
  return (
    <aside class="engine" id="engine" aria-label="Engine">
      <header>
        <h2>Engine</h2>
        <IconButton icon="close" label="Close the engine view" onClick={onClose} />
      </header>
      {error && (
        <p class="failure" role="status">
          {error}
        </p>
      )}
      {engine ? <EngineView engine={engine} samples={samples} /> : !error && <p class="hint">Asking…</p>}
    </aside>
  );
}

function EngineView({ engine, samples }: { engine: EngineState; samples: Sample[] }) {
  const { store, tokens } = engine;
  const asked = store.hits + store.misses;
  return (
    <>
      <dl class="facts">
        <Fact name="Texts" value={`${engine.running} of ${engine.parallel}`} more={engine.waiting > 0 ? `${engine.waiting} waiting` : ''} />
        <Fact name="Backend" value={engine.backend} more={`up ${durationText(engine.uptime_s)}`} />
        <Fact name="New tokens" value={tokens.new.toLocaleString('en')} more={`prompt ${tokens.prompt.toLocaleString('en')}`} />
        <Fact name="From the cache" value={tokens.reused.toLocaleString('en')} more="prompt tokens" />
        <Fact name="Hit rate" value={asked > 0 ? `${rounded((100 * store.hits) / asked)} %` : '–'} more="since the start" />
        <Fact name="Read" value={bytesText(store.bytes_read)} more={tokens.new > 0 ? `stalled ${durationText(store.stall_s)}` : ''} />
      </dl>
      <h3>Where the experts are</h3>
      {engine.tiers.map((tier) => (
        <TierBar key={tier.name} tier={tier} />
      ))}
      <h3>The last two minutes</h3>
      <Plot label="New tokens/s" values={samples.map((s) => s.new_per_s)} places={kSamples} most={null} text={(v) => rounded(v)} />
      <Plot label="Hit rate" values={samples.map((s) => s.hit_rate)} places={kSamples} most={1} text={(v) => `${rounded(100 * v)} %`} />
      <Plot label="Read" values={samples.map((s) => s.read_bytes_per_s)} places={kSamples} most={null} text={(v) => `${bytesText(v)}/s`} />
      <h3>
        Layers × experts <span class="hint">layer {engine.layers[0]?.layer ?? 0} at the top</span>
      </h3>
      <HeatMap layers={engine.layers} />
    </>
  );
}

function Fact({ name, value, more }: { name: string; value: string; more: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {value} <span class="hint">{more}</span>
      </dd>
    </div>
  );
}

function TierBar({ tier }: { tier: Tier }) {
  const share = tier.capacity > 0 ? Math.min(1, tier.bytes / tier.capacity) : 0;
  return (
    <div class="tier">
      <span class="name">{tier.name}</span>
      <meter class="unseen" min={0} max={1} value={share} aria-label={`${tier.name}: ${bytesText(tier.bytes)} of ${bytesText(tier.capacity)}`} />
      <span class="bar" aria-hidden="true">
        <span style={{ width: `${100 * share}%` }} />
      </span>
      <span class="amount">
        {bytesText(tier.bytes)}
        {tier.bytes !== tier.capacity && ` of ${bytesText(tier.capacity)}`} <span class="hint">{tier.detail}</span>
      </span>
    </div>
  );
}
