import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["**/*.d.ts", ".venv/", "node_modules/"] },
  js.configs.recommended,
  { files: ["webui/static/js/**/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["tests/js/**/*.js"], languageOptions: { globals: { ...globals.node, Element: "writable" } } },
  { rules: { "max-lines": ["error", 300], "max-lines-per-function": ["error", 60], eqeqeq: ["error", "smart"] } },
];
