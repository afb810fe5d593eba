// Many clients that stream at once: node tests/clients/load.js PROGRAM PACKAGE [CLIENTS] [SECONDS] [serve options...]
// Each asks for one text after the other until the time is over. Says how many tokens each got, and what memory the
// server took; ends with 1 if an answer failed, if the slowest client got less than half of what the median one got, or
// if the server did not end cleanly.
'use strict';
const fs = require('fs');
const http = require('http');
const { spawn } = require('child_process');

const [program, modelPackage, clients = '64', seconds = '60', ...more] = process.argv.slice(2);
const n = Number(clients);
const child = spawn(program, ['serve', modelPackage, '--port', '0', '--ctx', '512', '--parallel', clients, '--max-queue', clients, '--no-log', ...more], { stdio: ['ignore', 'pipe', 'inherit'] });
const ended = new Promise((resolve) => child.on('exit', resolve));
const memory = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${child.pid}/status`, 'utf8'))[1]) / 1024;
const agent = new http.Agent({ keepAlive: true, maxSockets: n });

function ask(url, seed) {  // the number of tokens of one answer
  const body = JSON.stringify({ stream: true, seed, max_tokens: 100, messages: [{ role: 'user', content: `Tell me story number ${seed} about a cake.` }], stream_options: { include_usage: true } });
  return new Promise((resolve, reject) => {
    const request = http.request(`${url}/v1/chat/completions`, { agent, method: 'POST', headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) } }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (data) => { text += data; });
      response.on('end', () => {
        const usage = /"usage":\{"prompt_tokens":\d+,"completion_tokens":(\d+)/.exec(text);
        if (response.statusCode !== 200 || !usage || !text.endsWith('data: [DONE]\n\n')) reject(new Error(`${response.statusCode}: ${text.slice(-300)}`));
        else resolve(Number(usage[1]));
      });
      response.on('error', reject);
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function main() {
  const url = await new Promise((resolve) => child.stdout.once('data', (data) => resolve(String(data).trim())));
  const tokens = new Array(n).fill(0);
  let answers = 0, failed = 0;
  const start = Date.now(), until = start + 1000 * Number(seconds);
  const samples = [];
  const timer = setInterval(() => samples.push(memory()), 1000);
  await Promise.all(tokens.map(async (_, i) => {
    for (let k = 0; Date.now() < until; ++k) {
      try {
        tokens[i] += await ask(url, i * 100000 + k);
        ++answers;
      } catch (error) {
        ++failed;
        console.error(String(error));
        if (failed > 10) break;
      }
    }
  }));
  clearInterval(timer);
  const elapsed = (Date.now() - start) / 1000;
  const sorted = [...tokens].sort((a, b) => a - b);
  const median = sorted[Math.floor(n / 2)], all = tokens.reduce((a, b) => a + b, 0);
  console.log(`${n} clients, ${elapsed.toFixed(1)} s: ${answers} answers, ${failed} failed, ${(all / elapsed).toFixed(0)} tok/s in all`);
  console.log(`tokens per client: least ${sorted[0]}, median ${median}, most ${sorted[n - 1]}`);
  console.log(`memory of the server, MiB: ${samples.filter((_, i) => i % Math.ceil(samples.length / 10) === 0).map((m) => m.toFixed(0)).join(' ')} ${memory().toFixed(0)}`);
  child.kill('SIGTERM');
  const code = await ended;
  process.exit(failed || code !== 0 || sorted[0] < median / 2 ? 1 : 0);
}

main().catch((error) => {
  console.error(error);
  child.kill('SIGKILL');
  process.exit(1);
});
