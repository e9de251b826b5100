const shared = { platform: "browser", resolve: { extensionAlias: { ".js": [".ts", ".js"] } } };
const output = { dir: "build/page", minify: true, entryFileNames: "[name].js" };

export default [
  { ...shared, input: { page: "src/web/page.ts" }, output: { ...output, format: "es" } },
  // No module, since LiteRT.js loads a script of its own as only others can.
  { ...shared, input: { litert: "src/web/litert_worker.ts" }, output: { ...output, format: "iife" } },
];
