/* Fill the elements that waited for this script, and every later one at once. */
(function () {
  "use strict";
  const waiting = window.timbreQueue || [];
  const fill = ([name, ...rest]) => window.timbre[name](...rest);
  window.timbreQueue = { push: fill };
  waiting.forEach(fill);
})();
