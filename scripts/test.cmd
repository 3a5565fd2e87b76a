@echo off
rem Sets up what the tests need, then runs lint, types, import layers and tests. Arguments go to pytest.
setlocal
set "V8_EXTRAS=[app,test]"
set "REPOSITORY=%~dp0.."
if not defined V8_VENV set "V8_VENV=%REPOSITORY%\.venv-test"
call "%~dp0v8.cmd" --version || exit /b 1
cd /d "%REPOSITORY%"
set "PATH=%V8_VENV%\Scripts;%PATH%"
ruff check . || exit /b 1
ruff format --check . || exit /b 1
mypy || exit /b 1
lint-imports || exit /b 1
python scripts\plain.py v8 scripts docs\bridges --limits || exit /b 1
python -m pytest %*
exit /b %ERRORLEVEL%
