@echo off
rem Sets up what the main job needs, then runs it: scripts\run --source demo --smoke
call "%~dp0v8.cmd" run %*
exit /b %ERRORLEVEL%
