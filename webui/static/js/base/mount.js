/* Run the calls that were queued before this script loaded, and later ones immediately. */
(function () {
  "use strict";
  const waiting = window.timbreQueue || [];
  const fill = ([name, ...rest]) => window.timbre[name](...rest);
  window.timbreQueue = { push: fill };
  waiting.forEach(fill);
  // Not an onclick attribute: the Content-Security-Policy forbids scripts in attributes.
  document.addEventListener("click", (event) => {
    if (event.target.closest(".theme-switch")) window.timbre.switchTheme();
  });
})();
