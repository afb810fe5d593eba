// Texts that try to run something, load something or look like something else. `window.hits` would notice.
'use strict';

const run = 'window.hits.push';

exports.hostile = [
  `<script>${run}(1)</script>`,
  `<img src=x onerror="${run}(2)"><svg onload="${run}(3)"></svg>`,
  `[click](javascript:${run}(4)) [click](JaVaScRiPt:${run}(5)) [click](&#106;avascript:${run}(6)) <javascript:${run}(7)>`,
  `![x](http://127.0.0.2:9/leak.png) ![x](data:text/html,<script>${run}(8)</script>) [d](data:text/html;base64,PHNjcmlwdD4=) [v](vbscript:x) [f](file:///etc/passwd) [r](/v1/engine)`,
  `<iframe srcdoc="<script>${run}(9)</script>"></iframe><object data="data:text/html,x"></object><embed src="x">`,
  `<svg><style><img src=x onerror="${run}(10)"></style></svg><math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=${run}(11)&gt;">`,
  `<a href="javascript:${run}(12)" onmouseover="${run}(13)">x</a> <a href="https://example.org" style="position:fixed;inset:0">cover</a>`,
  `<form action="http://127.0.0.2:9/"><input name="attributes"><input type="submit"></form><base href="http://127.0.0.2:9/">`,
  `<style>@import "http://127.0.0.2:9/x.css"; body { display: none }</style><link rel=stylesheet href=http://127.0.0.2:9/x.css><meta http-equiv=refresh content="0;url=http://127.0.0.2:9/">`,
  '```html" onmouseover="' + run + '(14)\n<script>' + run + '(15)</script>\n```',
  '```"><img src=x onerror=' + run + '(16)>\n</code></pre><img src=x onerror=' + run + '(17)>\n```',
  `| <img src=x onerror=${run}(18)> | b |\n|---|---|\n| <script>${run}(19)</script> | [x](javascript:${run}(20)) |`,
  `[ref]\n\n[ref]: javascript:${run}(21) "onclick=${run}(22)"`,
  `<sub onclick="${run}(23)">x</sub> <kbd>ok</kbd> <br onload=${run}(24)> <details open ontoggle="${run}(25)">x</details>`,
  `[x](https://example.org/"onmouseover="${run}(26)) [x](https://example.org/ 'a" onmouseover="${run}(27)') https://example.org/"onclick=${run}(28)`,
  `<template><script>${run}(29)</script></template><noscript><p title="</noscript><img src=x onerror=${run}(30)>">`,
  `<div id="app"></div><div class="banner" id="getElementById">This server wants an API key</div>`,
  `\u202e<script>${run}(31)</script> \u0000<scr\u0000ipt>${run}(32)</script> ${'<b>'.repeat(500)}${'> '.repeat(300)}deep ${'['.repeat(500)}`,
];
