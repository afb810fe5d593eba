// A server of the program for a test, on a port that is free.
'use strict';
const { spawn } = require('child_process');

const servers = [];

function startServer(program, modelPackage, args, environment = {}) {
  const child = spawn(program, ['serve', modelPackage, '--port', '0', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...environment },
  });
  let log = '';
  child.stderr.on('data', (data) => { log += data; });
  const ended = new Promise((resolve) => child.on('exit', resolve));
  const ready = new Promise((resolve, reject) => {
    child.stdout.on('data', (data) => resolve(String(data).trim()));
    void ended.then((code) => reject(new Error(`the server ended with ${code}: ${log}`)));
  });
  const end = async () => {
    child.kill('SIGTERM');
    await ended;
  };
  servers.push({ end });
  return { child, ready, end, log: () => log };
}

// Also those of tests that failed before their end.
async function endServers() {
  for (const server of servers) await server.end();
}

module.exports = { endServers, startServer };
